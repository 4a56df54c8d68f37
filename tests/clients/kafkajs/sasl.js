'use strict'
// KafkaJS with SASL: produces the values and reads them back in a group. Standard input: JSON with broker, ca (a path, or
// nothing), mechanism, username, password, topic and values. Prints what it read, one line of JSON.

const fs = require('node:fs')
const { Kafka, logLevel } = require('kafkajs')

const asked = JSON.parse(fs.readFileSync(0, 'utf8'))
const { broker, ca, mechanism, username, password, topic, values } = asked

const play = async () => {
  const kafka = new Kafka({
    brokers: [broker],
    logLevel: logLevel.NOTHING,
    ssl: ca ? { ca: [fs.readFileSync(ca)], servername: 'localhost' } : false,
    sasl: { mechanism, username, password },
    reauthenticationThreshold: 500,
    retry: { retries: 5 },
  })
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: values.map(value => ({ value })) })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `group-${topic}` })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const got = []
  await new Promise((resolve, reject) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        got.push(message.value.toString())
        if (got.length === values.length) resolve()
      },
    }).catch(reject)
  })
  await consumer.disconnect()
  return got
}

play().then(
  got => {
    process.stdout.write(JSON.stringify(got) + '\n', () => process.exit(0))
  },
  error => {
    process.stderr.write(`${error.name}: ${error.message}\n`)
    process.exit(1)
  },
)
