// Produce and fetch records over ZeroMQ, with the package `zeromq` and nothing else.
//
//     node produce_and_fetch.js ipc:///run/appliance/zeromq TOPIC VALUE...
//
// It prints each record of partition 0 as `offset value`.
"use strict";

const { Session, create, fetch, produce } = require("./client");

const main = async ([endpoint, topic, ...values]) => {
  const session = await Session.open(endpoint);
  await create(session, topic);
  if (values.length) await produce(session, topic, values.map((value) => Buffer.from(value)));
  for (let offset = 0n, records; (records = await fetch(session, topic, offset)).length; ) {
    for (const [each, value] of records) {
      console.log(`${each} ${value}`);
      offset = each + 1n;
    }
  }
  await session.close();
};

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
