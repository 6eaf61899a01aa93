// Series from text (JSON, CSV, numbers separated by blanks), and generated ones.

import { parseNumber, parseTime } from "./calendar.js";

// Names of the column of times, the likeliest first.
const TIME_COLUMNS = ["ds", "date", "datetime", "timestamp", "time"];
const ID_COLUMN = "unique_id";
const MISSING = new Set(["", "null", "nan", "na", "n/a", "none", "-", "."]);

export class SeriesError extends Error {}

/** Parses a text as `{values, start}`; `values` is flat for one feature, else rows, `start` the time of the first row or null.
 *
 * `features` are the names that the model takes, in their order; the columns of a table with a heading are chosen by them.
 */
export function parseSeries(text, features) {
  const { values, times } = readSeries(text, { features });
  return { values, start: times === null ? null : new Date(times[0]).toISOString() };
}

/** Parses a text as `{values, times, future, statics}`.
 *
 * `values` is flat for one feature, else rows; `times` a timestamp for each, or null. Of a table with a heading, rows behind the last
 * one in which any feature but those of `future` has a value are the steps ahead: they come as `future`, arrays by name.
 * `statics` holds the numbers of columns of these names, by name. `stamps` is the unit of whole numbers as times.
 */
export function readSeries(text, { features, future = [], statics = [], stamps = null }) {
  const trimmed = text.trim();
  if (trimmed === "") throw new SeriesError("There is no series yet; paste numbers, or fill in generated ones.");
  if (trimmed.startsWith("[") || trimmed.startsWith("{")) return { values: fromJson(trimmed), times: null, future: {}, statics: {} };
  return fromTable(trimmed, { features, future, statics, stamps });
}

function fromJson(text) {
  let value;
  try {
    value = JSON.parse(text.replace(/\b[+-]?NaN\b/g, "null"));
  } catch (error) {
    throw new SeriesError(`The series looks like JSON but is not valid: ${error.message}.`);
  }
  const array = value?.inputs?.[0]?.series ?? value?.series ?? value;
  if (!Array.isArray(array)) throw new SeriesError('JSON must be an array of numbers, or hold one as "series".');
  checkNumbers(array);
  return array;
}

function checkNumbers(values) {
  for (const value of values) {
    if (Array.isArray(value)) checkNumbers(value);
    else if (value !== null && (typeof value !== "number" || !Number.isFinite(value))) {
      throw new SeriesError(`A series holds numbers and null, got ${JSON.stringify(value) ?? value}.`);
    }
  }
}

function fromTable(text, { features, future, statics, stamps }) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  const separator = [";", "\t", ","].find((mark) => text.includes(mark)) ?? null;
  let rows = lines.map((line) => cellsOf(line, separator, features.length === 1));
  const isHead = rows[0].every((cell) => !isNumber(cell)) && rows[0].some((cell) => !MISSING.has(cell.toLowerCase()));
  const head = isHead && rows.length > 1 ? rows[0] : null;
  if (head !== null) rows = rows.slice(1);
  const first = head === null ? 1 : 2;
  const { times, index: timeColumn } = timesOf(rows, head, features, stamps, first);
  const idColumn = head === null || features.includes(ID_COLUMN) ? -1 : head.indexOf(ID_COLUMN);
  checkOneSeries(rows, idColumn);
  const constants = head === null ? {} : constantsOf(rows, head, statics, first);
  const others = (cells) => cells.filter((_, index) => index !== timeColumn && index !== idColumn && !(head?.[index] in constants));
  if (head !== null && features.every((name) => head.includes(name))) {
    const indices = features.map((name) => head.indexOf(name));
    rows = rows.map((row) => indices.map((index) => row[index] ?? ""));
  } else if (head !== null && others(head).length > 1) {
    const [names, expected] = [others(head), features].map((list) => list.join(", "));
    throw new SeriesError(`The heading names ${names}; the model takes ${expected}. Rename the columns, or leave the heading out to give them in that order.`);
  } else {
    rows = rows.map(others);
  }
  const values = rows.map((row, index) => row.map((cell) => valueOf(cell, index + first)));
  const observed = head === null ? values.length : pastOf(values, features, future);
  const past = values.slice(0, observed);
  const ahead = values.slice(observed);
  return {
    // Numbers of one feature may be in lines of any length.
    values: features.length === 1 ? past.flat() : past,
    times: times === null ? null : times.slice(0, observed),
    future: ahead.length === 0 ? {} : Object.fromEntries(future.map((name) => [name, ahead.map((row) => row[features.indexOf(name)])])),
    statics: constants,
  };
}

/** Returns the number of rows up to the last one with a value that is not known in advance; all if nothing is known in advance. */
function pastOf(values, features, future) {
  if (future.length === 0) return values.length;
  const observed = features.flatMap((name, index) => (future.includes(name) ? [] : [index]));
  return values.findLastIndex((row) => observed.some((index) => row[index] !== null && row[index] !== undefined)) + 1 || values.length;
}

/** Returns the value of each static column of the table; all rows must agree. */
function constantsOf(rows, head, statics, first) {
  const constants = {};
  for (const name of statics.filter((name) => head.includes(name))) {
    const cells = rows.map((row, index) => valueOf(row[head.indexOf(name)] ?? "", index + first));
    const distinct = [...new Set(cells.filter((cell) => cell !== null))];
    if (distinct.length > 1) throw new SeriesError(`The column ${name} never changes within a series, got ${distinct[0]} and ${distinct[1]}.`);
    if (distinct.length === 1) constants[name] = distinct[0];
  }
  return constants;
}

function checkOneSeries(rows, idColumn) {
  if (idColumn < 0) return;
  const names = [...new Set(rows.map((row) => row[idColumn]))];
  if (names.length > 1) {
    throw new SeriesError(`The table holds ${names.length} series in its column ${ID_COLUMN} (${names[0].slice(0, 40)}, ${names[1].slice(0, 40)} ...). Paste the rows of one of them.`);
  }
}

function cellsOf(line, separator, single) {
  if (separator === null || !line.includes(separator)) return line.trim().split(/\s+/);
  const cells = line.split(separator).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1"));
  // With one feature, "1, 2, 3," ends in a comma and not in a missing value.
  if (single && cells.length > 2 && cells.at(-1) === "") cells.pop();
  // With semicolons between cells, a comma is the decimal point.
  const decimal = separator === ";" ? cells.map((cell) => cell.replace(",", ".")) : cells;
  // Numbers of one feature may be separated by commas, blanks, or both.
  return single ? decimal.flatMap((cell) => (cell.split(/\s+/).every(isValue) ? cell.split(/\s+/) : [cell])) : decimal;
}

/** Returns the times and their column: by name if the table has a heading, else the first column of nothing but times. */
function timesOf(rows, head, features, stamps, first) {
  const cellsAt = (index) => rows.map((row) => row[index] ?? "");
  const hasTimes = (index) => rows.every((row) => row.length > 1) && cellsAt(index).every((cell) => parseTime(cell) !== null);
  if (head === null) return hasTimes(0) ? { times: cellsAt(0).map(parseTime), index: 0 } : { times: null, index: -1 };
  const indices = head.map((_, index) => index).filter((index) => !features.includes(head[index]));
  const named = TIME_COLUMNS.map((name) => indices.find((index) => head[index].toLowerCase() === name)).find((index) => index !== undefined);
  const index = named ?? indices.find(hasTimes) ?? -1;
  if (index < 0) return { times: null, index };
  const cells = cellsAt(index);
  const times = cells.map((cell) => parseTime(cell) ?? parseNumber(cell, stamps));
  if (!times.includes(null)) return { times, index };
  // Numbers, if the training data had none as times: they only number the steps.
  if (cells.every(isNumber)) return { times: null, index };
  const wrong = times.indexOf(null);
  throw new SeriesError(`Line ${wrong + first} holds "${cells[wrong].slice(0, 40)}" in the column ${head[index]}, which is not a time. Write times as 2024-01-31 or 2024-01-31 13:00.`);
}

function isValue(cell) {
  return isNumber(cell) || MISSING.has(cell.toLowerCase());
}

function isNumber(cell) {
  return cell !== "" && Number.isFinite(Number(cell));
}

function valueOf(cell, line) {
  if (MISSING.has(cell.toLowerCase())) return null;
  if (isNumber(cell)) return Number(cell);
  throw new SeriesError(`Line ${line} holds "${cell.slice(0, 40)}", which is not a number. Missing values are null, NaN or an empty cell.`);
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

/** Returns a function that returns the next sample at each call: one number for each feature, with its mean and deviation.
 *
 * `kind` is `sine`, `steps` or `noise`; `vocabulary` above 0 returns whole numbers below it instead.
 */
export function generator({ kind, means, scales, period = 24, seed = 1, vocabulary = 0 }) {
  const draw = random(seed);
  const levels = means.map(() => 0);
  let step = 0;
  const shapes = {
    sine: (feature) => 1.3 * Math.sin((2 * Math.PI * step) / period + feature) + 0.1 * gauss(draw),
    steps: (feature) => {
      if (step % Math.max(2, Math.round(period / 2)) === 0) levels[feature] = 3 * draw() - 1.5;
      return levels[feature];
    },
    noise: () => gauss(draw),
  };
  const shape = shapes[kind];
  return () => {
    const sample = means.map((mean, feature) => {
      if (vocabulary > 0) {
        const share = 0.5 + shape(feature) / 4;
        return Math.min(vocabulary - 1, Math.max(0, Math.floor(share * vocabulary)));
      }
      return Number((mean + scales[feature] * shape(feature)).toPrecision(6));
    });
    step += 1;
    return sample;
  };
}

function gauss(draw) {
  return Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
}

/** Samples as the text that `parseSeries` reads back: one line for each step, or blanks between single numbers. */
export function seriesText(samples) {
  if (samples.length > 0 && samples[0].length === 1) return samples.map(([value]) => value ?? "NaN").join(" ");
  return samples.map((sample) => sample.map((value) => value ?? "NaN").join(", ")).join("\n");
}
