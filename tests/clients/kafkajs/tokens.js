// Produces and consumes with a token. usage: node tokens.js BROKER CA_FILE TOPIC TOKEN COUNT; prints what it has read.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const [broker, authorities, topic, token, count] = process.argv.slice(2)

async function main() {
  const kafka = new Kafka({
    brokers: [broker],
    logLevel: logLevel.ERROR,
    ssl: { ca: [fs.readFileSync(authorities)], servername: 'localhost' },
    sasl: { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) },
    retry: { retries: 2 },
  })
  const producer = kafka.producer()
  await producer.connect()
  const messages = Array.from({ length: Number(count) }, (_, number) => ({ value: String(number) }))
  await producer.send({ topic, acks: -1, messages })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: topic })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const read = []
  await new Promise((resolve) =>
    consumer.run({
      eachMessage: async ({ message }) => {
        read.push(message.value.toString())
        if (read.length === Number(count)) resolve()
      },
    })
  )
  await consumer.disconnect()
  console.log(JSON.stringify(read))
}

main().catch((error) => {
  console.error(`${error.name}: ${error.message}`)
  process.exit(1)
})
