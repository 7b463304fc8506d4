// Puts a running gateway through what an MQTT.js client does.
// Usage: node client.mjs URL VERSION [CAFILE], VERSION: 3, 4 or 5 as in CONNECT
// Prints "ok" and exits with 0, or says on stderr what was not as it should be and exits with 1.
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import mqtt from "mqtt";

const WAIT_MS = 60_000;
const [url, versionText, cafile] = process.argv.slice(2);
const version = Number(versionText);
const isFive = version === 5;
const prefix = `js/${new URL(url).protocol.replace(":", "")}/${version}`;

function fail(error) {
  process.stderr.write(`${error?.stack ?? error}\n`);
  process.exit(1);
}
process.on("unhandledRejection", fail);

function check(condition, problem) {
  if (!condition) throw new Error(problem);
}

function same(found, wanted, what) {
  const text = (value) => JSON.stringify(value, (_, item) => item ?? null);
  check(isDeepStrictEqual(found, wanted), `${what}: ${text(found)} is not ${text(wanted)}`);
}

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing came`)), WAIT_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** A connected client; `next()` is its next message. */
async function connect(name, more = {}) {
  const arrived = [];
  const waiting = [];
  const client = mqtt.connect(url, {
    clientId: `${prefix}/${name}`,
    protocolVersion: version,
    protocolId: version === 3 ? "MQIsdp" : "MQTT",
    reconnectPeriod: 0,
    ...(cafile === undefined ? {} : { ca: readFileSync(cafile) }),
    ...more,
  });
  client.on("message", (topic, body, packet) => {
    const message = { topic, body: body.toString(), packet };
    const taker = waiting.shift();
    if (taker === undefined) arrived.push(message);
    else taker(message);
  });
  const connack = await within(
    new Promise((resolve, reject) => {
      client.on("connect", resolve);
      client.on("error", reject);
      client.on("close", () => reject(new Error("closed while connecting")));
    }),
    "CONNACK",
  );
  const next = () =>
    within(
      arrived.length ? arrived.shift() : new Promise((resolve) => waiting.push(resolve)),
      `a message for ${name}`,
    );
  return { client, connack, next };
}

const kept = () => ({
  clean: false,
  ...(isFive ? { properties: { sessionExpiryInterval: 3600 } } : {}),
});

async function roundTrips() {
  const { client, next } = await connect("trips");
  for (const qos of [0, 1, 2]) {
    const granted = await client.subscribeAsync(`${prefix}/trips/${qos}/#`, { qos });
    same(granted[0].qos, qos, "granted QoS");
    const bodies = Array.from({ length: 20 }, (_, index) => `${index}`.padEnd(5_000 * index, "x"));
    for (const body of bodies) await client.publishAsync(`${prefix}/trips/${qos}/t`, body, { qos });
    for (const body of bodies) {
      const message = await next();
      same([message.topic, message.body], [`${prefix}/trips/${qos}/t`, body], "a round trip");
      same(message.packet.qos, qos, "QoS");
    }
  }
  await client.endAsync();
}

async function retained() {
  const { client, next } = await connect("retained");
  const publish = (name, body) =>
    client.publishAsync(`${prefix}/retained/${name}`, body, { qos: 1, retain: true });
  await publish("a", "first");
  await publish("a", "second");
  await publish("b", "gone");
  await publish("b", "");
  await client.subscribeAsync(`${prefix}/retained/+`, { qos: 1 });
  const old = await next();
  same([old.body, old.packet.retain], ["second", true], "a retained message");
  await publish("a", "live");
  const live = await next();
  same([live.body, live.packet.retain], ["live", false], "a live message");
  await client.endAsync();
}

async function will() {
  const heir = await connect("heir");
  await heir.client.subscribeAsync(`${prefix}/will/+`, { qos: 1 });
  const more = isFive
    ? { properties: { contentType: "text/plain", userProperties: { why: "gone" } } }
    : {};
  const dying = await connect("dying", {
    will: { topic: `${prefix}/will/x`, payload: "farewell", qos: 1, retain: false, ...more },
  });
  dying.client.stream.destroy();
  const message = await heir.next();
  same([message.topic, message.body], [`${prefix}/will/x`, "farewell"], "the will");
  if (isFive) {
    same(message.packet.properties.contentType, "text/plain", "the will's content type");
    same({ ...message.packet.properties.userProperties }, { why: "gone" }, "its user property");
  }
  await dying.client.endAsync(true);
  await heir.client.endAsync();
}

async function session() {
  const before = await connect("sleeper", kept());
  if (version !== 3) same(before.connack.sessionPresent, false, "a session before");
  await before.client.subscribeAsync(`${prefix}/sleep`, { qos: 2 });
  await before.client.endAsync();
  const waker = await connect("waker");
  for (const body of ["0", "1", "2"]) {
    await waker.client.publishAsync(`${prefix}/sleep`, body, { qos: 2 });
  }
  await waker.client.endAsync();
  const after = await connect("sleeper", kept());
  if (version !== 3) same(after.connack.sessionPresent, true, "the session afterwards");
  for (const body of ["0", "1", "2"]) same((await after.next()).body, body, "an offline message");
  await after.client.endAsync();
}

async function takeOver() {
  const first = await connect("twin");
  const reason = new Promise((resolve) => {
    first.client.on("disconnect", (packet) => resolve(packet.reasonCode));
    first.client.on("close", () => resolve("closed"));
  });
  const second = await connect("twin");
  same(await within(reason, "the end of the first"), isFive ? 0x8e : "closed", "take-over");
  await first.client.endAsync(true);
  await second.client.endAsync();
}

async function properties() {
  const name = `${prefix}/properties`;
  const { client, next } = await connect("properties");
  await client.subscribeAsync(name, { qos: 1, properties: { subscriptionIdentifier: 300 } });
  await client.publishAsync(name, "x", {
    qos: 1,
    properties: {
      payloadFormatIndicator: true,
      messageExpiryInterval: 60,
      contentType: "text/plain",
      responseTopic: `${prefix}/answers`,
      correlationData: Buffer.from([0, 255]),
      userProperties: { b: ["1", "2"], a: "3" },
    },
  });
  const found = (await next()).packet.properties;
  check(found.messageExpiryInterval > 50, `expiry ${found.messageExpiryInterval}`);
  same(found.payloadFormatIndicator, true, "payload format");
  same(found.contentType, "text/plain", "content type");
  same(found.responseTopic, `${prefix}/answers`, "response topic");
  same([...found.correlationData], [0, 255], "correlation data");
  same({ ...found.userProperties }, { b: ["1", "2"], a: "3" }, "user properties");
  same(found.subscriptionIdentifier, 300, "subscription identifier");
  await client.endAsync();
}

async function expiry() {
  const name = `${prefix}/expiry`;
  const before = await connect("late", kept());
  await before.client.subscribeAsync(name, { qos: 1 });
  await before.client.endAsync();
  const { client } = await connect("prompt");
  for (const seconds of [1, 600]) {
    const more = { messageExpiryInterval: seconds };
    await client.publishAsync(name, `${seconds}`, { qos: 1, properties: more });
  }
  await client.endAsync();
  // The expiry interval itself; it has whole seconds only.
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  const after = await connect("late", kept());
  same((await after.next()).body, "600", "what did not expire");
  await after.client.endAsync();
}

async function aliases() {
  const { client, connack, next } = await connect("aliases", {
    properties: { topicAliasMaximum: 4 },
    autoAssignTopicAlias: true,
  });
  check(connack.properties.topicAliasMaximum > 0, "the gateway takes no topic aliases");
  await client.subscribeAsync(`${prefix}/aliases/#`, { qos: 1 });
  const names = ["a", "b", "a", "a", "b", "c", "a"].map((name) => `${prefix}/aliases/${name}`);
  for (const name of names) await client.publishAsync(name, name, { qos: 1 });
  for (const name of names) {
    // MQTT.js resolves the gateway's aliases itself.
    const message = await next();
    same([message.topic, message.body], [name, name], "an aliased topic");
  }
  await client.endAsync();
}

async function shared() {
  const name = `${prefix}/shared`;
  const members = [await connect("one"), await connect("two")];
  for (const { client } of members) await client.subscribeAsync(`$share/js/${name}`, { qos: 1 });
  const { client } = await connect("feeder");
  const bodies = Array.from({ length: 20 }, (_, index) => `${index}`);
  for (const body of bodies) await client.publishAsync(name, body, { qos: 1 });
  const got = [];
  for (const member of members) {
    // A round trip of each member: what it was sent before has come.
    await member.client.subscribeAsync(`${prefix}/flush`, { qos: 1 });
    await member.client.publishAsync(`${prefix}/flush`, "end", { qos: 1 });
    let count = 0;
    for (;;) {
      const { body } = await member.next();
      if (body === "end") break;
      got.push(body);
      count += 1;
    }
    check(count > 0, "a member of the group got nothing");
    await member.client.unsubscribeAsync(`${prefix}/flush`);
    await member.client.endAsync();
  }
  same(
    got.sort((left, right) => left - right),
    bodies,
    "what the group got",
  );
  await client.endAsync();
}

async function requests() {
  const asking = await connect("asking");
  const answering = await connect("answering");
  await answering.client.subscribeAsync(`${prefix}/service`, { qos: 1 });
  await asking.client.subscribeAsync(`${prefix}/replies`, { qos: 1 });
  await asking.client.publishAsync(`${prefix}/service`, "?", {
    qos: 1,
    properties: { responseTopic: `${prefix}/replies`, correlationData: Buffer.from("7") },
  });
  const { responseTopic, correlationData } = (await answering.next()).packet.properties;
  await answering.client.publishAsync(responseTopic, "!", {
    qos: 1,
    properties: { correlationData },
  });
  const answer = await asking.next();
  same([answer.body, `${answer.packet.properties.correlationData}`], ["!", "7"], "the answer");
  await asking.client.endAsync();
  await answering.client.endAsync();
}

async function reasons() {
  const { client } = await connect("reasons");
  const codes = [];
  client.on("packetreceive", (packet) => {
    if (packet.cmd === "puback") codes.push(packet.reasonCode);
    if (packet.cmd === "suback") codes.push(...packet.granted);
  });
  await client.publishAsync(`${prefix}/nobody`, "x", { qos: 1 });
  same(codes, [0x10], "nobody subscribes");
  const refused = await client.publishAsync("$SYS/mine", "x", { qos: 1 }).catch((error) => error);
  check(refused.code >= 0x80, `a refused publish: ${refused}`);
  await client.subscribeAsync("$share/g", { qos: 1 }).catch(() => {});
  same(codes.at(-1), 0x8f, "an illegal filter");
  await client.endAsync();
  const late = await connect("x".repeat(2000)).catch((error) => error);
  same(late.code, 0x85, "a refused CONNECT");
}

const steps = [roundTrips, retained, will, session, takeOver];
if (isFive) steps.push(properties, expiry, aliases, shared, requests, reasons);
for (const step of steps) {
  try {
    await step();
  } catch (error) {
    fail(`${step.name}: ${error?.stack ?? error}`);
  }
}
process.stdout.write("ok\n");
process.exit(0);
