// Series from text (JSON, CSV, numbers separated by blanks), and generated ones.

import { parseNumber, parseTime } from "./calendar.js";
import { Failure } from "./dom.js";

// Names of the column of times, the likeliest first.
const TIME_COLUMNS = ["ds", "date", "datetime", "timestamp", "time"];
const ID_COLUMN = "unique_id";
const MISSING = new Set(["", "null", "nan", "na", "n/a", "none", "-", "."]);
export const SHAPES = [
  ["sine", "Sine"],
  ["steps", "Steps"],
  ["noise", "Noise"],
];

/** Parses a text as `{values, times, future, statics}`.
 *
 * `features` are the names that the model takes, in their order; the columns of a table with a heading are chosen by them. `values`
 * is flat for one feature, else rows; `times` a timestamp for each, or null. Of a table with a heading, rows behind the last one in
 * which any feature but those of `future` has a value are the steps ahead: they come as `future`, arrays by name. `statics` holds
 * the numbers of columns of these names, by name. `stamps` is the unit of whole numbers as times.
 */
export function readSeries(text, { features, future = [], statics = [], stamps = null }) {
  const trimmed = text.trim();
  if (trimmed === "") throw new Failure("There is no series yet; paste numbers, or fill in generated ones.");
  if (/^[[{]/.test(trimmed)) return { values: fromJson(trimmed), times: null, future: {}, statics: {} };
  const isSingle = features.length === 1;
  const lines = trimmed.split(/\r?\n/).filter((line) => line.trim() !== "");
  const separator = [";", "\t", ","].find((mark) => trimmed.includes(mark)) ?? null;
  let rows = lines.map((line) => cellsOf(line, separator, isSingle));
  const isHead = rows.length > 1 && !rows[0].some(isNumber) && rows[0].some((cell) => !isMissing(cell));
  const head = isHead ? rows.shift() : [];
  const first = isHead ? 2 : 1;
  const { times, index: timeColumn } = timesOf(rows, head, features, stamps, first);
  const idColumn = features.includes(ID_COLUMN) ? -1 : head.indexOf(ID_COLUMN);
  const names = new Set(idColumn < 0 ? [] : rows.map((row) => row[idColumn]));
  if (names.size > 1) {
    const [one, two] = [...names].map((name) => name.slice(0, 40));
    throw new Failure(`The table holds ${names.size} series in its column ${ID_COLUMN} (${one}, ${two} ...). Paste the rows of one of them.`);
  }
  const constants = constantsOf(rows, head, statics, first);
  const others = (cells) => cells.filter((_, index) => index !== timeColumn && index !== idColumn && !(head[index] in constants));
  if (isHead && features.every((name) => head.includes(name))) {
    rows = rows.map((row) => features.map((name) => row[head.indexOf(name)] ?? ""));
  } else if (others(head).length > 1) {
    throw new Failure(
      `The heading names ${others(head).join(", ")}; the model takes ${features.join(", ")}. Rename the columns, or leave the heading out to give them in that order.`,
    );
  } else {
    rows = rows.map(others);
  }
  const values = rows.map((row, index) => row.map((cell) => valueOf(cell, index + first)));
  // Up to the last row with a value that is not known in advance.
  const isObserved = (row) => features.some((name, index) => !future.includes(name) && (row[index] ?? null) !== null);
  const observed = (isHead && future.length > 0 && values.findLastIndex(isObserved) + 1) || values.length;
  const [past, ahead] = [values.slice(0, observed), values.slice(observed)];
  return {
    // Numbers of one feature may be in lines of any length.
    values: isSingle ? past.flat() : past,
    times: times && times.slice(0, observed),
    future: ahead.length === 0 ? {} : Object.fromEntries(future.map((name) => [name, ahead.map((row) => row[features.indexOf(name)])])),
    statics: constants,
  };
}

function fromJson(text) {
  let value;
  try {
    value = JSON.parse(text.replace(/\b[+-]?NaN\b/g, "null"));
  } catch (error) {
    throw new Failure(`The series looks like JSON but is not valid: ${error.message}.`);
  }
  const array = value?.inputs?.[0]?.series ?? value?.series ?? value;
  if (!Array.isArray(array)) throw new Failure('JSON must be an array of numbers, or hold one as "series".');
  const wrong = array.flat(Infinity).find((item) => item !== null && !Number.isFinite(item));
  if (wrong !== undefined) throw new Failure(`A series holds numbers and null, got ${JSON.stringify(wrong)}.`);
  return array;
}

/** Returns the value of each static column of the table; all rows must agree. */
function constantsOf(rows, head, statics, first) {
  const constants = {};
  for (const name of statics.filter((name) => head.includes(name))) {
    const cells = rows.map((row, index) => valueOf(row[head.indexOf(name)] ?? "", index + first));
    const [value, other] = new Set(cells.filter((cell) => cell !== null));
    if (other !== undefined) throw new Failure(`The column ${name} never changes within a series, got ${value} and ${other}.`);
    if (value !== undefined) constants[name] = value;
  }
  return constants;
}

function cellsOf(line, separator, isSingle) {
  if (separator === null || !line.includes(separator)) return line.trim().split(/\s+/);
  let cells = line.split(separator).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1"));
  // With one feature, "1, 2, 3," ends in a comma and not in a missing value.
  if (isSingle && cells.length > 2 && cells.at(-1) === "") cells.pop();
  // With semicolons between cells, a comma is the decimal point.
  if (separator === ";") cells = cells.map((cell) => cell.replace(",", "."));
  // Numbers of one feature may be separated by commas, blanks, or both.
  return isSingle ? cells.flatMap((cell) => (cell.split(/\s+/).every((part) => isNumber(part) || isMissing(part)) ? cell.split(/\s+/) : [cell])) : cells;
}

/** Returns the times and their column: by name if the table has a heading, else the first column of nothing but times. */
function timesOf(rows, head, features, stamps, first) {
  const cellsAt = (index) => rows.map((row) => row[index] ?? "");
  const hasTimes = (index) => rows.every((row) => row.length > 1) && cellsAt(index).every((cell) => parseTime(cell) !== null);
  const indices = head.length === 0 ? [0] : [...head.keys()].filter((index) => !features.includes(head[index]));
  const named = TIME_COLUMNS.map((name) => indices.find((index) => head[index]?.toLowerCase() === name)).find((index) => index !== undefined);
  const index = named ?? indices.find(hasTimes) ?? -1;
  const cells = cellsAt(index);
  const times = cells.map((cell) => parseTime(cell) ?? parseNumber(cell, stamps));
  if (index >= 0 && !times.includes(null)) return { times, index };
  // Numbers, if the training data had none as times: they only number the steps.
  if (index < 0 || cells.every(isNumber)) return { times: null, index };
  const wrong = times.indexOf(null);
  throw new Failure(`Line ${wrong + first} holds "${cells[wrong].slice(0, 40)}" in the column ${head[index]}, which is not a time. Write times as 2024-01-31 or 2024-01-31 13:00.`);
}

function isMissing(cell) {
  return MISSING.has(cell.toLowerCase());
}

function isNumber(cell) {
  return cell !== "" && Number.isFinite(Number(cell));
}

function valueOf(cell, line) {
  if (isMissing(cell)) return null;
  if (isNumber(cell)) return Number(cell);
  throw new Failure(`Line ${line} holds "${cell.slice(0, 40)}", which is not a number. Missing values are null, NaN or an empty cell.`);
}

/** Names of the features that a request must contain: all but those that the server computes from the calendar. */
export function observedFeatures({ features, calendar }) {
  const computed = new Set((calendar ?? []).flatMap(({ name }) => [`calendar_${name}_sin`, `calendar_${name}_cos`]));
  return features.filter((name) => !computed.has(name));
}

/** Mean and standard deviation of each observed feature in the training data; 0 and 1 if the server does not know them. */
export function scalesOf(facts) {
  const { mean = [], scale = [] } = facts.preprocessing?.scaling ?? {};
  return observedFeatures(facts).map((name) => {
    const index = facts.features.indexOf(name);
    return { mean: mean[index] ?? 0, scale: scale[index] ?? 1 };
  });
}

/** A reproducible source of numbers from 0 to 1 (an xorshift generator). */
function random(seed) {
  let state = seed * 2654435761 + 1 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

/** Returns a function that returns the next sample at each call: one number for each of the `scales`, with its mean and deviation.
 *
 * `kind` is `sine`, `steps` or `noise`; `vocabulary` above 0 returns whole numbers below it instead.
 */
export function generator({ kind, scales, period, seed = 1, vocabulary = 0 }) {
  const draw = random(seed);
  const gauss = () => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
  const levels = [];
  let step = -1;
  const shape = {
    sine: (feature) => 1.3 * Math.sin((2 * Math.PI * step) / period + feature) + 0.1 * gauss(),
    steps: (feature) => {
      if (step % Math.max(2, Math.round(period / 2)) === 0) levels[feature] = 3 * draw() - 1.5;
      return levels[feature];
    },
    noise: gauss,
  }[kind];
  return () => {
    step += 1;
    return scales.map(({ mean, scale }, feature) => {
      if (vocabulary === 0) return Number((mean + scale * shape(feature)).toPrecision(6));
      return Math.min(vocabulary - 1, Math.max(0, Math.floor((0.5 + shape(feature) / 4) * vocabulary)));
    });
  };
}

/** Samples as the text that `readSeries` reads back: one line for each step, or blanks between single numbers. */
export function seriesText(samples) {
  const separator = samples[0]?.length === 1 ? " " : "\n";
  return samples.map((sample) => sample.map((value) => value ?? "NaN").join(", ")).join(separator);
}
