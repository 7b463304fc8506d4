// Puts a running gateway through what a @stomp/stompjs client does, over WebSocket.
// Usage: node client.mjs URL VERSION text|binary
// Prints "ok" and exits with 0, or says on stderr what was not as it should be and exits with 1.
import { Client, Versions } from "@stomp/stompjs";
import { WebSocket } from "ws";

const WAIT_MS = 60_000;
const [url, version, kind] = process.argv.slice(2);
const prefix = `/queue/js.${version}.${kind}`;

function fail(error) {
  process.stderr.write(`${error?.stack ?? error}\n`);
  process.exit(1);
}
process.on("unhandledRejection", fail);

function check(condition, problem) {
  if (!condition) throw new Error(problem);
}

function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing came`)), WAIT_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** A connected client whose messages and receipts can be waited for one by one. */
async function connect(more = {}) {
  const sockets = [];
  const client = new Client({
    brokerURL: url,
    webSocketFactory: () => {
      const socket = new WebSocket(url, new Versions([version]).protocolVersions());
      sockets.push(socket);
      return socket;
    },
    stompVersions: new Versions([version]),
    forceBinaryWSFrames: kind === "binary",
    reconnectDelay: 0,
    heartbeatIncoming: 0,
    heartbeatOutgoing: 0,
    ...more,
  });
  const errors = [];
  client.onStompError = (frame) => errors.push(frame);
  await within(
    new Promise((resolve, reject) => {
      client.onConnect = resolve;
      client.onWebSocketError = reject;
      client.onWebSocketClose = () => reject(new Error("closed while connecting"));
      client.activate();
    }),
    "CONNECTED",
  );
  client.onWebSocketClose = () => {};
  check(client.connectedVersion === version, `version ${client.connectedVersion}`);
  check(
    sockets[0].protocol === `v${version.replace(".", "")}.stomp`,
    `subprotocol ${sockets[0].protocol}`,
  );
  let receipts = 0;
  const confirmed = (act) => {
    const id = `r${(receipts += 1)}`;
    const done = new Promise((resolve) => client.watchForReceipt(id, resolve));
    act({ receipt: id });
    return within(done, `RECEIPT ${id}`);
  };
  return { client, confirmed, errors };
}

/** Subscribe; `next()` is the next message. */
function subscribe(client, destination, headers = {}) {
  const waiting = [];
  const arrived = [];
  const subscription = client.subscribe(
    destination,
    (message) => (waiting.length ? waiting.shift()(message) : arrived.push(message)),
    headers,
  );
  const next = () =>
    within(
      new Promise((resolve) => (arrived.length ? resolve(arrived.shift()) : waiting.push(resolve))),
      `MESSAGE of ${destination}`,
    );
  return { subscription, next, arrived };
}

const text = (message) => message.body;

async function modes() {
  for (const ack of ["auto", "client", "client-individual"]) {
    const name = `${prefix}.${ack}`;
    const { client, confirmed } = await connect();
    for (let number = 0; number < 10; number += 1) {
      await confirmed((headers) =>
        client.publish({ destination: name, body: `${number} žluť`, headers }),
      );
    }
    const { next } = subscribe(client, name, { ack });
    let last;
    for (let number = 0; number < 10; number += 1) {
      last = await next();
      check(text(last) === `${number} žluť`, `body ${text(last)}`);
      if (ack === "client-individual") last.ack();
    }
    if (ack === "client") last.ack(); // cumulative
    await client.deactivate();
    const again = await connect();
    await again.confirmed((headers) =>
      again.client.publish({ destination: name, body: "last", headers }),
    );
    const rest = subscribe(again.client, name);
    check(text(await rest.next()) === "last", "something was delivered twice");
    await again.client.deactivate();
  }
}

async function bytes() {
  const { client } = await connect();
  const { next } = subscribe(client, `${prefix}.bytes`);
  const body = Uint8Array.from({ length: 70_000 }, (_, index) => index % 256);
  if (kind === "text") {
    client.publish({ destination: `${prefix}.bytes`, body: "nul \0 inside" });
    check(text(await next()) === "nul \0 inside", "a NUL in a text body");
  } else {
    client.publish({ destination: `${prefix}.bytes`, binaryBody: body });
    const message = await next();
    check(Buffer.compare(message.binaryBody, body) === 0, "a binary body");
  }
  await client.deactivate();
}

async function headers() {
  const { client } = await connect();
  const { next } = subscribe(client, `${prefix}.headers`);
  const wanted = { plain: "a b  c", ünï: "žluť" };
  // stompjs escapes headers in 1.2 alone (its escapeHeaderValues).
  if (version === "1.2") wanted.odd = "colon:newline\nbackslash\\";
  client.publish({ destination: `${prefix}.headers`, body: "x", headers: wanted });
  const message = await next();
  for (const [key, value] of Object.entries(wanted)) {
    check(message.headers[key] === value, `header ${key}: ${message.headers[key]}`);
  }
  await client.deactivate();
}

async function nack() {
  if (version === "1.0") return;
  const { client, confirmed } = await connect();
  const { next } = subscribe(client, `${prefix}.nack`, { ack: "client-individual" });
  client.publish({ destination: `${prefix}.nack`, body: "again" });
  (await next()).nack();
  const back = await next();
  check(text(back) === "again", `body ${text(back)}`);
  check(back.headers.redelivered === "true", "it is not marked as redelivered");
  await confirmed((receipt) => back.ack(receipt));
  await client.deactivate();
}

async function transactions() {
  const name = `${prefix}.transaction`;
  const { client, confirmed } = await connect();
  const { next } = subscribe(client, name);
  const [kept, dropped] = [client.begin(), client.begin()];
  const send = (body, headers) => client.publish({ destination: name, body, headers });
  send("dropped", { transaction: dropped.id });
  send("kept", { transaction: kept.id });
  await confirmed((receipt) => send("outside", receipt));
  check(text(await next()) === "outside", "seen before COMMIT");
  dropped.abort();
  kept.commit();
  check(text(await next()) === "kept", "seen after ABORT");
  await client.deactivate();
}

/** A machine that stalls for longer than the beats are apart ends it rightly: then once more. */
async function heartBeats() {
  for (let attempt = 0; attempt < 3; attempt++) {
    const { client } = await connect({ heartbeatIncoming: 1000, heartbeatOutgoing: 1000 });
    let closed = false;
    client.onWebSocketClose = () => (closed = true);
    await new Promise((resolve) => setTimeout(resolve, 3500));
    const isAlive = !closed;
    await client.deactivate();
    if (isAlive) return;
  }
  check(false, "an idle connection ended");
}

async function refused() {
  const { client, errors } = await connect();
  const closed = new Promise((resolve) => (client.onWebSocketClose = resolve));
  client.publish({ destination: "/nowhere/at-all", body: "x", headers: { receipt: "r7" } });
  await within(closed, "the end of the connection");
  check(errors.length === 1, `${errors.length} errors`);
  check(errors[0].headers["receipt-id"] === "r7", "the error names no receipt");
  check(errors[0].body.includes("/queue/NAME"), "the error does not say what to write");
  await client.deactivate();
}

const idle = heartBeats();
for (const step of [modes, bytes, headers, nack, transactions, refused]) await step();
await idle;
process.stdout.write("ok\n");
process.exit(0);
