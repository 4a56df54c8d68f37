// Print the records of partition 0 as they are committed, with the package `zeromq` and nothing else.
//
//     node subscribe.js ipc:///run/appliance/zeromq TOPIC COUNT
//
// It ends after COUNT records.
"use strict";

const { RETRIABLE, Session, create, decodeBatches } = require("./client");

const main = async ([endpoint, topic, count]) => {
  const session = await Session.open(endpoint);
  await create(session, topic);
  await session.subscribe(topic, 0n);
  let left = Number(count);
  let offset = 0n;
  for await (const [error, records] of session.pushes(topic)) {
    // The topic is new and nobody leads it yet: the subscription has ended, so begin another.
    if (RETRIABLE.has(error)) await session.subscribe(topic, offset);
    else if (error) throw new Error(`push: Kafka's error ${error}`);
    for (const [each, value] of decodeBatches(records)) {
      if (each < offset || !left) continue;
      console.log(`${each} ${value}`);
      offset = each + 1n;
      left -= 1;
    }
    if (!left) break;
  }
  await session.close();
};

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
