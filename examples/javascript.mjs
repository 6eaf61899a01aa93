// The service from JavaScript: classify and forecast by fetch, streams by WebSocket, as text and as binary frames.
// Node 22 and browsers have all of it; Node 20 needs `node --experimental-websocket javascript.mjs`.

const URL_ = process.env.STABLERNN_URL ?? "http://127.0.0.1:8080";
const TOKEN = process.env.STABLERNN_TOKEN;
const PIXELS = [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0, 0, 3, 15, 2, 0, 11, 8, 0];

async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (TOKEN) headers.Authorization = `Bearer ${TOKEN}`;
  const request = body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers };
  const response = await fetch(URL_ + path, request);
  const answer = await response.json();
  if (!response.ok) throw new Error(`${answer.code}: ${answer.error}`);
  return answer;
}

// An open stream; `say` sends a message and gives the answer, which come in the order of the messages.
async function connect(model) {
  // A browser's WebSocket sends no headers: the token travels as a second subprotocol.
  const protocols = TOKEN ? ["stablernn", `bearer.${Buffer.from(TOKEN).toString("base64url")}`] : ["stablernn"];
  const address = `${URL_.replace(/^http/, "ws")}/v1/stream?model=${encodeURIComponent(model)}`;
  const socket = new WebSocket(address, protocols);
  socket.binaryType = "arraybuffer";
  const waiting = [];
  let failure = null;
  socket.onmessage = ({ data }) => {
    const answer = typeof data === "string" ? JSON.parse(data) : data;
    if (answer.closing) return; // The server shuts down, and gives the tokens to go on with: answer.state_tokens.
    const { resolve, reject } = waiting.shift() ?? {};
    if (answer.error) reject?.(new Error(`${answer.code}: ${answer.error}`));
    else resolve?.(answer);
  };
  socket.onerror = socket.onclose = () => {
    failure = new Error(`The connection to ${address} is closed.`);
    for (const { reject } of waiting.splice(0)) reject(failure);
  };
  const next = () =>
    new Promise((resolve, reject) => (failure ? reject(failure) : waiting.push({ resolve, reject })));
  const about = await next();
  const say = (message) => {
    const answer = next();
    socket.send(message instanceof ArrayBuffer ? message : JSON.stringify(message));
    return answer;
  };
  return { about, say, close: () => socket.close() };
}

// Streams 0 to `streams` - 1 take `steps` samples each: a head of 12 bytes, the streams' numbers, the samples.
function frame(streams, steps, samples) {
  const content = new ArrayBuffer(12 + 4 * streams + 4 * samples.length);
  const view = new DataView(content);
  view.setUint8(0, 1);
  view.setUint32(4, streams, true);
  view.setUint32(8, steps, true);
  for (let number = 0; number < streams; number++) view.setUint32(12 + 4 * number, number, true);
  samples.forEach((value, at) => view.setFloat32(12 + 4 * streams + 4 * at, value, true));
  return content;
}

console.log("Models:", await ask("/v1/timeseries/models"));

const classes = await ask("/v1/timeseries/classify", {
  model: "digits",
  inputs: [{ series: PIXELS }, { series: [0, null, 12, 13, 5] }],
  options: { top_k: 2 },
});
for (const output of classes.outputs) console.log(output.content[0].label, output.content[0].probabilities);

const forecast = await ask("/v1/timeseries/forecast", {
  model: "co2",
  inputs: [{ series: [369.1, null, 369.4, 369.6], frequency: "W", start_timestamp: "2024-01-06T00:00:00Z" }],
  options: { horizon: 3 },
});
const { start_timestamp, mean_forecast } = forecast.outputs[0].content[0];
console.log(`From ${start_timestamp}:`, mean_forecast);

const stream = await connect("digits");
for (const pixel of PIXELS) {
  const { step, outputs } = await stream.say({ values: [pixel] });
  // A model of patches has outputs when one is full.
  if (outputs.length > 0) console.log(`step ${step}: ${outputs[0].label}`);
}

// The state in a token, with which any server that has the key and the model goes on.
const { state_token } = await stream.say({ token: true });
const restored = await stream.say({ stream: 1, state_token });
console.log(`stream 1 is at step ${restored.step}`);
stream.close();

const several = await connect("digits");
const answer = await several.say(frame(2, PIXELS.length, [...PIXELS, ...PIXELS]));
const steps = new BigUint64Array(answer.slice(12, 12 + 8 * 2));
console.log(`2 streams in one frame, ${steps[0]} and ${steps[1]} steps`);
several.close();
