'use strict'
// Committed offsets by KafkaJS's admin: `node offsets.js ADDRESS GROUP TOPIC [OFFSET]` prints the offset of partition 0,
// after committing OFFSET where it is given.

const { Kafka, logLevel } = require('kafkajs')

const main = async (address, groupId, topic, offset) => {
  const retry = { initialRetryTime: 50, maxRetryTime: 500, retries: 20 }
  const admin = new Kafka({ clientId: 'offsets', brokers: [address], logLevel: logLevel.NOTHING, retry }).admin()
  await admin.connect()
  if (offset !== undefined) await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset }] })
  const [found] = await admin.fetchOffsets({ groupId, topics: [topic] })
  await admin.disconnect()
  console.log(found.partitions.find(each => each.partition === 0).offset)
}

main(...process.argv.slice(2)).catch(error => {
  console.error(error)
  process.exit(1)
})
