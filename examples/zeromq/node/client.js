// One session with broker 0, and Kafka's formats as short as they can be. docs/zeromq.md describes what is sent.
"use strict";

const zmq = require("zeromq");

const Kind = {
  HELLO: 1,
  WELCOME: 2,
  OPEN: 3,
  OPENED: 4,
  REQUEST: 5,
  RESPONSE: 6,
  CREDIT: 7,
  HEARTBEAT: 8,
  CLOSE: 9,
  ERROR: 10,
  SUBSCRIBE: 16,
  PUSH: 18,
};
const PRODUCE = 0;
const FETCH = 1;
const METADATA = 3;
const RETRIABLE = new Set([3, 5, 6]); // UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER
const HEADER_BYTES = 24;
const MORE = 1;
const WINDOW = 4 << 20;
const PATIENCE_MS = 30_000;
const HEARTBEAT_MS = 2_000;
const NUMBER = 1n;

const int = (bytes, number) => {
  const out = Buffer.alloc(bytes);
  if (bytes === 8) out.writeBigInt64BE(BigInt(number));
  else out.writeIntBE(number, 0, bytes);
  return out;
};
const string = (text) => Buffer.concat([int(2, Buffer.byteLength(text)), Buffer.from(text)]);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Session {
  static async open(endpoint) {
    const session = new Session();
    session.token = Buffer.alloc(16);
    session.socket = dealer(endpoint);
    await session.send(Kind.HELLO, Buffer.concat([int(1, 1), int(4, -1), string("example")]));
    const welcome = (await session.receive()).body;
    session.socket.close();
    const length = welcome.readUInt16BE(5);
    session.socket = dealer(welcome.toString("utf8", 7, 7 + length));
    await session.send(Kind.OPEN, Buffer.concat([welcome.subarray(1, 5), int(8, WINDOW), string("example")]));
    session.token = (await session.receive()).body.subarray(0, 16);
    session.correlationId = 0;
    return session;
  }

  async send(kind, ...frames) {
    const header = Buffer.concat([Buffer.from([0x4b, 0x5a, 1, kind, 0, 0, 0, 0]), this.token]);
    await this.socket.send([header, ...frames]);
  }

  // The next message, or null when nothing has come for `timeoutMs`. The caller acknowledges what it has consumed.
  async receive(timeoutMs = PATIENCE_MS) {
    this.socket.receiveTimeout = timeoutMs;
    let frames;
    try {
      frames = await this.socket.receive();
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      if (timeoutMs === PATIENCE_MS) throw new Error("the broker does not answer");
      return null;
    }
    const [header, ...rest] = frames;
    const body = Buffer.concat(rest);
    if (header.length < HEADER_BYTES || header[3] === Kind.ERROR) {
      throw new Error(`error ${body.readUInt16BE(0)}: ${body.toString("utf8", 4)}`);
    }
    return { kind: header[3], more: header.readUInt32BE(4) & MORE, mark: header.readBigUInt64BE(8), body };
  }

  async acknowledge(message) {
    if (!message.mark || message.kind === Kind.HEARTBEAT) return;
    const mark = Buffer.alloc(8);
    mark.writeBigUInt64BE(message.mark);
    await this.send(Kind.CREDIT, Buffer.concat([mark, int(8, WINDOW)]));
  }

  // Sends a Kafka request, waits for its response, returns the response's body.
  async ask(apiKey, version, ...frames) {
    this.correlationId += 1;
    const header = [int(2, apiKey), int(2, version), int(4, this.correlationId), string("example")];
    await this.send(Kind.REQUEST, Buffer.concat(header), ...frames);
    const parts = [];
    for (;;) {
      const message = await this.receive();
      if (message.kind === Kind.RESPONSE) parts.push(message.body);
      await this.acknowledge(message);
      if (message.kind === Kind.RESPONSE && !message.more) break;
    }
    const response = Buffer.concat(parts);
    if (response.readInt32BE(0) !== this.correlationId) throw new Error("a response to another request");
    return response.subarray(4);
  }

  // Yields pushes as [error, records] for as long as the caller wants, and sends heartbeats meanwhile.
  async *pushes(topic) {
    let parts = [];
    let heartbeatMark = 0n;
    for (;;) {
      const message = await this.receive(HEARTBEAT_MS);
      if (message === null) {
        const mark = Buffer.alloc(8);
        mark.writeBigUInt64BE(heartbeatMark);
        await this.send(Kind.HEARTBEAT, mark);
        continue;
      }
      if (message.kind === Kind.HEARTBEAT) heartbeatMark = message.mark;
      if (message.kind === Kind.PUSH) {
        parts.push(message.body);
        if (!message.more) {
          yield partition(Buffer.concat(parts).subarray(4), topic);
          parts = [];
        }
      }
      await this.acknowledge(message);
    }
  }

  async subscribe(topic, offset) {
    const numbers = [int(8, NUMBER), int(4, 0), int(8, offset), int(1, 0), int(4, 1 << 20)];
    await this.send(Kind.SUBSCRIBE, Buffer.concat([...numbers, string(topic)]));
  }

  async close() {
    await this.send(Kind.CLOSE);
    this.socket.linger = 1000;
    this.socket.close();
  }
}

const dealer = (endpoint) => {
  const socket = new zmq.Dealer({ linger: 0, immediate: true, sendTimeout: PATIENCE_MS });
  socket.connect(endpoint);
  return socket;
};

// Kafka's formats: Metadata v4, Produce v8, Fetch v4, record batches v2.

const crc32c = (data) => {
  let crc = 0xffffffff;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  }
  return (crc ^ 0xffffffff) | 0;
};

const varint = (number) => {
  let left = number < 0 ? -2 * number - 1 : 2 * number;
  const out = [];
  for (; left > 127; left = Math.floor(left / 128)) out.push((left % 128) | 128);
  return Buffer.from([...out, left]);
};

const readVarint = (data, at) => {
  let number = 0;
  let scale = 1;
  for (; ; scale *= 128) {
    const byte = data[at++];
    number += (byte & 127) * scale;
    if (byte < 128) return [number % 2 ? -(number + 1) / 2 : number / 2, at];
  }
};

const encodeBatch = (values) => {
  const records = values.map((value, delta) => {
    const body = Buffer.concat([
      Buffer.from([0]),
      varint(0),
      varint(delta),
      varint(-1), // no key
      varint(value.length),
      value,
      varint(0), // no headers
    ]);
    return Buffer.concat([varint(body.length), body]);
  });
  const now = int(8, Date.now());
  const noProducer = [int(8, -1), int(2, -1), int(4, -1)];
  const tail = Buffer.concat([
    int(2, 0),
    int(4, values.length - 1),
    now,
    now,
    ...noProducer,
    int(4, values.length),
    ...records,
  ]);
  return Buffer.concat([int(8, 0), int(4, 9 + tail.length), int(4, -1), int(1, 2), int(4, crc32c(tail)), tail]);
};

// Yields [offset, value] of whole batches that are not compressed.
function* decodeBatches(data) {
  for (let at = 0; at + 61 <= data.length; ) {
    const base = data.readBigInt64BE(at);
    const end = at + 12 + data.readInt32BE(at + 8);
    if (end > data.length) return;
    const count = data.readInt32BE(at + 57);
    at += 61;
    for (let record = 0; record < count; record++) {
      let size, delta, keyLength, valueLength;
      [size, at] = readVarint(data, at);
      const next = at + size;
      [, at] = readVarint(data, at + 1);
      [delta, at] = readVarint(data, at);
      [keyLength, at] = readVarint(data, at);
      [valueLength, at] = readVarint(data, at + Math.max(keyLength, 0));
      yield [base + BigInt(delta), data.subarray(at, at + Math.max(valueLength, 0))];
      at = next;
    }
    at = end;
  }
}

// The error and the records of the one partition in a Fetch response.
const partition = (body, topic) => {
  const at = 8 + 2 + Buffer.byteLength(topic) + 8;
  const aborted = Math.max(body.readInt32BE(at + 18), 0);
  return [body.readInt16BE(at), body.subarray(at + 26 + 16 * aborted)];
};

// Metadata creates the topic where the broker allows that.
const create = (session, topic) =>
  session.ask(METADATA, 4, Buffer.concat([int(4, 1), string(topic), int(1, 1)]));

// Appends to partition 0. The batch travels in a frame of its own, so it is not copied.
const produce = async (session, topic, values) => {
  const batch = encodeBatch(values);
  const numbers = [int(4, 1), int(4, 0), int(4, batch.length)];
  const head = Buffer.concat([int(2, -1), int(2, -1), int(4, 30_000), int(4, 1), string(topic), ...numbers]);
  for (;;) {
    const answer = await session.ask(PRODUCE, 8, head, batch);
    const error = answer.readInt16BE(4 + 2 + Buffer.byteLength(topic) + 4 + 4);
    if (!error) return;
    if (!RETRIABLE.has(error)) throw new Error(`produce: Kafka's error ${error}`);
    await sleep(100);
  }
};

// Returns the records of partition 0 from `offset` on; waits up to a second for some.
const fetch = async (session, topic, offset) => {
  const head = [int(4, -1), int(4, 1000), int(4, 1), int(4, 8 << 20), int(1, 0), int(4, 1), string(topic)];
  const where = [int(4, 1), int(4, 0), int(8, offset), int(4, 8 << 20)];
  const [error, records] = partition(await session.ask(FETCH, 4, Buffer.concat([...head, ...where])), topic);
  if (error) throw new Error(`fetch: Kafka's error ${error}`);
  return [...decodeBatches(records)].filter(([each]) => each >= offset);
};

module.exports = { RETRIABLE, Session, create, decodeBatches, fetch, produce };
