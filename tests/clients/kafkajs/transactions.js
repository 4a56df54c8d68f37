'use strict'
// KafkaJS's transactions: one JSON object a line on standard input, one answer a line on standard output. Values travel
// as base64. `init` is the first `transaction()`, because KafkaJS asks for its producer id there. KafkaJS reads by groups
// only, so reading goes one floor down, to Broker.fetch and the consumer's own Batch, which leaves out what was aborted.

const readline = require('node:readline')
const { Kafka, Partitioners, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const Batch = require('kafkajs/src/consumer/batch')
const defaultSocketFactory = require('kafkajs/src/network/socketFactory')
const { createLogger } = require('kafkajs/src/loggers')
const LoggerConsole = require('kafkajs/src/loggers/console')

const RETRY = { initialRetryTime: 50, maxRetryTime: 1000, retries: 8 }

let address
let kafka
const producers = new Map()

const ended = async (entry, how) => {
  await entry.transaction[how]()
  entry.transaction = null
}

const operations = {
  connect: async request => {
    address = request.address
    kafka = new Kafka({ clientId: 'kafkajs-transactions', brokers: [address], logLevel: logLevel.NOTHING, retry: RETRY })
  },

  producer: async ({ producer, id, timeoutMs }) => {
    const made = kafka.producer({
      transactionalId: id,
      transactionTimeout: timeoutMs,
      idempotent: true,
      maxInFlightRequests: 1,
      createPartitioner: Partitioners.DefaultPartitioner,
      retry: RETRY,
    })
    producers.set(producer, { made, transaction: null })
    await made.connect()
  },

  init: async (_, entry) => {
    entry.transaction = await entry.made.transaction()
  },

  begin: async (_, entry) => {
    if (!entry.transaction) entry.transaction = await entry.made.transaction()
  },

  send: async ({ topic, partition, values }, entry) => {
    const messages = values.map(value => ({ key: null, value: Buffer.from(value, 'base64'), partition }))
    await entry.transaction.send({ topic, acks: -1, messages })
  },

  sendOffsets: async ({ group, offsets }, entry) => {
    const topics = offsets.map(([topic, partition, offset]) => ({
      topic,
      partitions: [{ partition, offset: String(offset) }],
    }))
    await entry.transaction.sendOffsets({ consumerGroupId: group, topics })
  },

  commit: async (_, entry) => ended(entry, 'commit'),

  abort: async (_, entry) => ended(entry, 'abort'),

  closeProducer: async ({ producer }, entry) => {
    producers.delete(producer)
    await entry.made.disconnect()
  },

  read: async ({ topic, partition, until, committed, timeoutMs }) => {
    const isolationLevel = committed ? 1 : 0
    const cluster = new Cluster({
      logger: createLogger({ level: logLevel.NOTHING, logCreator: LoggerConsole }),
      socketFactory: defaultSocketFactory(),
      brokers: [address],
      clientId: 'kafkajs-transactions',
      connectionTimeout: 5000,
      authenticationTimeout: 5000,
      requestTimeout: 60000,
      metadataMaxAge: 60000,
      allowAutoTopicCreation: false,
      retry: RETRY,
      isolationLevel,
    })
    const values = []
    const deadline = Date.now() + timeoutMs
    await cluster.connect()
    try {
      await cluster.addTargetTopic(topic)
      let offset = 0n
      while (values.at(-1) !== until && Date.now() < deadline) {
        const [leader] = Object.keys(cluster.findLeaderForPartitions(topic, [partition]))
        const broker = await cluster.findBroker({ nodeId: leader })
        const { responses } = await broker.fetch({
          maxWaitTime: 100,
          minBytes: 1,
          maxBytes: 10485760,
          isolationLevel,
          topics: [{ topic, partitions: [{ partition, fetchOffset: String(offset), maxBytes: 1048576 }] }],
        })
        const batch = new Batch(topic, String(offset), responses[0].partitions[0])
        for (const message of batch.messages) values.push(message.value.toString('base64'))
        // The batch knows the control records behind its last message; these are no messages, but offsets.
        if (batch.rawMessages.length > 0) offset = BigInt(batch.lastOffset()) + 1n
      }
    } finally {
      await cluster.disconnect()
    }
    return values
  },
}

const perform = async line => {
  const request = JSON.parse(line)
  try {
    const told = await operations[request.op](request, producers.get(request.producer))
    return { ok: told === undefined ? null : told }
  } catch (error) {
    let cause = error
    while (cause.code === undefined && cause.cause) cause = cause.cause
    return { error: { code: typeof cause.code === 'number' ? cause.code : -1, message: String(error) } }
  }
}

const main = async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await perform(line)) + '\n')
  }
  process.exit(0)
}

main()
