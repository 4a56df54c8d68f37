'use strict'
// KafkaJS as a member of a group: `node member.js ADDRESS GROUP TOPIC CLIENT_ID` prints `partition offset` for every
// record it has processed, then commits, and leaves at SIGTERM.
//
// Its own assignor is called RoundRobinAssigner, which no other client knows; to be in one group with them it brings one
// called range.

const { Kafka, logLevel, AssignerProtocol } = require('kafkajs')

const range = ({ cluster }) => ({
  name: 'range',
  version: 0,
  async assign({ members, topics }) {
    const ids = members.map(member => member.memberId).sort()
    const shares = Object.fromEntries(ids.map(id => [id, {}]))
    for (const topic of topics) {
      const partitions = cluster.findTopicPartitionMetadata(topic).map(each => each.partitionId).sort((a, b) => a - b)
      const quota = Math.floor(partitions.length / ids.length)
      const extra = partitions.length % ids.length
      ids.forEach((id, place) => {
        const start = quota * place + Math.min(place, extra)
        shares[id][topic] = partitions.slice(start, start + quota + (place < extra ? 1 : 0))
      })
    }
    return ids.map(memberId => ({
      memberId,
      memberAssignment: AssignerProtocol.MemberAssignment.encode({
        version: 0,
        assignment: shares[memberId],
        userData: Buffer.alloc(0),
      }),
    }))
  },
  protocol({ topics }) {
    return {
      name: 'range',
      metadata: AssignerProtocol.MemberMetadata.encode({ version: 0, topics, userData: Buffer.alloc(0) }),
    }
  },
})

const main = async (address, groupId, topic, clientId) => {
  const retry = { initialRetryTime: 100, maxRetryTime: 500, retries: 50 }
  const kafka = new Kafka({ clientId, brokers: [address], logLevel: logLevel.NOTHING, retry })
  const consumer = kafka.consumer({
    groupId,
    sessionTimeout: 4000,
    heartbeatInterval: 300,
    rebalanceTimeout: 10000,
    partitionAssigners: [range],
    maxWaitTimeInMs: 200,
    retry,
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  process.on('SIGTERM', async () => {
    await consumer.disconnect()
    process.exit(0)
  })
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      process.stdout.write(`${partition} ${message.offset}\n`)
    },
  })
}

main(...process.argv.slice(2)).catch(error => {
  console.error(error)
  process.exit(1)
})
