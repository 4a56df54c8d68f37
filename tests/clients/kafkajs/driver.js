'use strict'
// KafkaJS behind the common vocabulary: one JSON object a line on standard input, one answer a line on standard
// output. Bytes travel as base64. Produce and admin calls are KafkaJS's public ones. Its consumer exists only
// inside groups, so reading goes one floor down: Cluster and Broker.fetch, which the consumer itself calls.

const readline = require('node:readline')
const { Kafka, CompressionCodecs, CompressionTypes, Partitioners, ConfigResourceTypes, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const Batch = require('kafkajs/src/consumer/batch')
const defaultSocketFactory = require('kafkajs/src/network/socketFactory')
const { createLogger } = require('kafkajs/src/loggers')
const LoggerConsole = require('kafkajs/src/loggers/console')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

const CODECS = { none: 'None', gzip: 'GZIP', snappy: 'Snappy', lz4: 'LZ4', zstd: 'ZSTD' }
const RETRY = { initialRetryTime: 50, maxRetryTime: 1000, retries: 8 }

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer),
})

const zstd = new Promise(resolve => ZstdCodec.run(module => resolve(new module.Streaming())))
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await zstd).decompress(buffer)),
})

const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const text = buffer => (buffer === null || buffer === undefined ? null : buffer.toString('base64'))

let kafka
let address
let admin

const connectedAdmin = async () => {
  if (!admin) {
    admin = kafka.admin({ retry: { retries: 2 } })
    await admin.connect()
  }
  return admin
}

const withCluster = async (topic, use) => {
  const cluster = new Cluster({
    logger: createLogger({ level: logLevel.NOTHING, logCreator: LoggerConsole }),
    socketFactory: defaultSocketFactory(),
    brokers: [address],
    clientId: 'kafkajs-driver',
    connectionTimeout: 5000,
    authenticationTimeout: 5000,
    requestTimeout: 60000,
    metadataMaxAge: 60000,
    allowAutoTopicCreation: false,
    retry: RETRY,
    isolationLevel: 0,
  })
  await cluster.connect()
  try {
    await cluster.addTargetTopic(topic)
    return await use(cluster)
  } finally {
    await cluster.disconnect()
  }
}

// KafkaJS takes headers as name → value or values.
const headersObject = pairs => {
  const headers = {}
  for (const [name, value] of pairs) {
    const known = Object.hasOwn(headers, name)
    headers[name] = known ? [].concat(headers[name], bytes(value)) : bytes(value)
  }
  return headers
}

const headerPairs = headers =>
  Object.entries(headers).flatMap(([name, values]) =>
    (Array.isArray(values) ? values : [values]).map(value => [name, text(value)])
  )

const operations = {
  connect: async request => {
    address = request.address
    kafka = new Kafka({ clientId: 'kafkajs-driver', brokers: [address], logLevel: logLevel.NOTHING, retry: RETRY })
    return null
  },

  close: async () => {
    if (admin) await admin.disconnect()
    admin = null
    return null
  },

  produce: async ({ topic, records, codec, acks, idempotent }) => {
    const producer = kafka.producer({
      idempotent,
      maxInFlightRequests: idempotent ? 1 : null,
      createPartitioner: Partitioners.DefaultPartitioner,
      retry: idempotent ? undefined : { retries: 4 },
    })
    await producer.connect()
    try {
      const told = []
      let batch = []
      let size = 0
      const send = async () => {
        if (batch.length === 0) return
        const results = await producer.send({
          topic,
          acks: acks === 'all' ? -1 : Number(acks),
          compression: CompressionTypes[CODECS[codec]],
          messages: batch,
        })
        const next = new Map(results.map(each => [each.partition, BigInt(each.baseOffset ?? -1)]))
        for (const message of batch) {
          if (message.partition === undefined || !next.has(message.partition)) continue
          const offset = next.get(message.partition)
          told.push([message.partition, Number(offset)])
          next.set(message.partition, offset + 1n)
        }
        batch = []
        size = 0
      }
      for (const [key, value, headers, timestamp, partition] of records) {
        const message = { key: bytes(key), value: bytes(value), headers: headersObject(headers) }
        if (timestamp !== null) message.timestamp = String(timestamp)
        if (partition !== null) message.partition = partition
        const length = (key || '').length + (value || '').length
        if (size + length > 900000) await send()
        batch.push(message)
        size += length
      }
      await send()
      return told
    } finally {
      await producer.disconnect()
    }
  },

  consume: async ({ topic, partition, start, count, maxWaitMs, timeoutMs }) =>
    withCluster(topic, async cluster => {
      const received = []
      let offset = BigInt(start)
      const deadline = Date.now() + timeoutMs
      while (received.length < count) {
        if (Date.now() > deadline) throw Object.assign(new Error(`${received.length} of ${count}`), { code: -2 })
        const [leader] = Object.keys(cluster.findLeaderForPartitions(topic, [partition]))
        const broker = await cluster.findBroker({ nodeId: leader })
        const { responses } = await broker.fetch({
          maxWaitTime: maxWaitMs,
          minBytes: 1,
          maxBytes: 10 * 1024 * 1024,
          isolationLevel: 0,
          topics: [
            { topic, partitions: [{ partition, fetchOffset: offset.toString(), maxBytes: 1024 * 1024 }] },
          ],
        })
        for (const { partitions } of responses) {
          for (const data of partitions) {
            const batch = new Batch(topic, offset.toString(), data)
            for (const message of batch.messages.slice(0, count - received.length)) {
              received.push([
                Number(message.offset),
                Number(message.timestamp),
                text(message.key),
                text(message.value),
                headerPairs(message.headers),
              ])
            }
            if (!batch.isEmptyIncludingFiltered()) offset = BigInt(batch.lastOffset()) + 1n
          }
        }
      }
      return received
    }),

  offsetForTime: async ({ topic, partition, timestamp }) =>
    withCluster(topic, async cluster => {
      const [found] = await cluster.fetchTopicsOffset([
        { topic, fromTimestamp: timestamp, partitions: [{ partition }] },
      ])
      const offset = Number(found.partitions[0].offset)
      return offset < 0 ? null : offset
    }),

  offsetRange: async ({ topic, partition }) => {
    const told = await (await connectedAdmin()).fetchTopicOffsets(topic)
    const found = told.find(each => each.partition === partition)
    return [Number(found.low), Number(found.high)]
  },

  createTopic: async ({ topic, partitions, replicas, settings }) => {
    const configEntries = Object.entries(settings).map(([name, value]) => ({ name, value }))
    const created = await (await connectedAdmin()).createTopics({
      topics: [{ topic, numPartitions: partitions, replicationFactor: replicas, configEntries }],
    })
    // KafkaJS answers false instead of an error for a topic that exists.
    if (!created) throw Object.assign(new Error('topic exists'), { code: 36 })
    return null
  },

  deleteTopic: async ({ topic }) => (await connectedAdmin()).deleteTopics({ topics: [topic] }),

  createPartitions: async ({ topic, total }) => {
    await (await connectedAdmin()).createPartitions({ topicPartitions: [{ topic, count: total }] })
    return null
  },

  topicSettings: async ({ topic }) => {
    const told = await (await connectedAdmin()).describeConfigs({
      includeSynonyms: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
    })
    return Object.fromEntries(
      told.resources[0].configEntries.map(({ configName, configValue }) => [configName, configValue])
    )
  },

  cluster: async () => {
    const told = await (await connectedAdmin()).describeCluster()
    return {
      clusterId: told.clusterId,
      nodes: told.brokers.map(({ nodeId, host, port }) => [nodeId, `${host}:${port}`]),
      controller: told.controller,
    }
  },

  topics: async () => {
    const told = await (await connectedAdmin()).fetchTopicMetadata()
    return Object.fromEntries(told.topics.map(({ name, partitions }) => [name, partitions.length]))
  },
}

// KafkaJS wraps what a broker answered: the code is on the error, its cause, or the errors inside it.
const codeOf = error => {
  for (let inner = error; inner; inner = inner.cause || (inner.errors && inner.errors[0])) {
    if (typeof inner.code === 'number') return inner.code
    if (inner.originalError && typeof inner.originalError.code === 'number') return inner.originalError.code
  }
  return -1
}

const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity })
let queue = Promise.resolve()
lines.on('line', line => {
  queue = queue.then(async () => {
    const { op, ...request } = JSON.parse(line)
    let answer
    try {
      answer = { ok: (await operations[op](request)) ?? null }
    } catch (error) {
      answer = { error: { code: codeOf(error), message: `${error.name}: ${error.message}` } }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  })
})
lines.on('close', () => queue.then(() => process.exit(0)))
