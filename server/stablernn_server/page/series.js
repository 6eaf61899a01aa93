// Series from text (JSON, CSV, numbers with blanks), and generated ones.

const MISSING = new Set(["", "null", "nan", "na", "n/a", "none", "-", "."]);

export class SeriesError extends Error {}

/** What a text says: `{values, start}`; `values` is flat for one feature, else rows, `start` the time of the first row or null.
 *
 * `features` are the names that the model takes, in their order; the columns of a table with a heading are chosen by them.
 */
export function parseSeries(text, features) {
  const trimmed = text.trim();
  if (trimmed === "") throw new SeriesError("There is no series yet; paste numbers, or fill in generated ones.");
  if (trimmed.startsWith("[") || trimmed.startsWith("{")) return { values: fromJson(trimmed), start: null };
  return fromTable(trimmed, features);
}

function fromJson(text) {
  let value;
  try {
    value = JSON.parse(text.replace(/\b[+-]?NaN\b/g, "null"));
  } catch (error) {
    throw new SeriesError(`The series looks like JSON and is not: ${error.message}.`);
  }
  const inner = value?.inputs?.[0]?.series ?? value?.series ?? value;
  if (!Array.isArray(inner)) throw new SeriesError('JSON must be an array of numbers, or hold one as "series".');
  checkNumbers(inner);
  return inner;
}

function checkNumbers(values) {
  for (const value of values) {
    if (Array.isArray(value)) checkNumbers(value);
    else if (value !== null && (typeof value !== "number" || !Number.isFinite(value))) {
      throw new SeriesError(`A series holds numbers and null, got ${JSON.stringify(value) ?? value}.`);
    }
  }
}

function fromTable(text, features) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  const separator = [";", "\t", ","].find((mark) => text.includes(mark)) ?? null;
  let rows = lines.map((line) => cellsOf(line, separator, features.length === 1));
  const isHead = rows[0].every((cell) => !isNumber(cell)) && rows[0].some((cell) => !MISSING.has(cell.toLowerCase()));
  const head = isHead && rows.length > 1 ? rows[0] : null;
  if (head !== null) rows = rows.slice(1);
  const { start, skip } = timesOf(rows);
  if (head !== null && features.every((name) => head.includes(name))) {
    const places = features.map((name) => head.indexOf(name));
    rows = rows.map((row) => places.map((place) => row[place] ?? ""));
  } else if (head !== null && head.length - skip > 1) {
    const [given, taken] = [head.slice(skip), features].map((names) => names.join(", "));
    throw new SeriesError(`The heading names ${given}; the model takes ${taken}. Rename the columns, or leave the heading out to give them in that order.`);
  } else {
    rows = rows.map((row) => row.slice(skip));
  }
  const first = head === null ? 1 : 2;
  const values = rows.map((row, place) => row.map((cell) => valueOf(cell, place + first)));
  // Numbers of one feature may stand in lines of any length.
  return { values: features.length === 1 ? values.flat() : values, start };
}

function cellsOf(line, separator, single) {
  if (separator === null || !line.includes(separator)) return line.trim().split(/\s+/);
  const cells = line.split(separator).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1"));
  // Of one feature, "1, 2, 3," ends in a comma and not in a missing value.
  if (single && cells.length > 2 && cells.at(-1) === "") cells.pop();
  // Where a semicolon parts the cells, a comma is the decimal point.
  const read = separator === ";" ? cells.map((cell) => cell.replace(",", ".")) : cells;
  // Commas and blanks may part the numbers of one feature in turn.
  return single ? read.flatMap((cell) => (cell.split(/\s+/).every(isValue) ? cell.split(/\s+/) : [cell])) : read;
}

/** Whether the first column holds times, and the first of these. */
function timesOf(rows) {
  const isTime = (cell) => /^\d{4}-\d\d(-\d\d.*)?$/.test(cell) && !Number.isNaN(Date.parse(cell));
  if (!rows.every((row) => row.length > 1 && isTime(row[0]))) return { start: null, skip: 0 };
  return { start: new Date(`${rows[0][0]}${/\d:\d/.test(rows[0][0]) ? "" : "T00:00Z"}`).toISOString(), skip: 1 };
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
  throw new SeriesError(`Line ${line} holds "${cell.slice(0, 40)}", which is no number. Missing values are null, NaN or an empty cell.`);
}

/** A reproducible source of numbers from 0 to 1 (an xorshift generator). */
export function random(seed) {
  let state = seed * 2654435761 + 1 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

/** A function that gives the sample of each step in turn: one number for each feature, with its mean and deviation.
 *
 * `kind` is `sine`, `steps` or `noise`; `vocabulary` above 0 gives whole numbers below it instead.
 */
export function generator({ kind, means, scales, period = 24, seed = 1, vocabulary = 0 }) {
  const draw = random(seed);
  const levels = means.map(() => 0);
  let step = 0;
  const shapes = {
    sine: (place) => 1.3 * Math.sin((2 * Math.PI * step) / period + place) + 0.1 * gauss(draw),
    steps: (place) => {
      if (step % Math.max(2, Math.round(period / 2)) === 0) levels[place] = 3 * draw() - 1.5;
      return levels[place];
    },
    noise: () => gauss(draw),
  };
  const shape = shapes[kind];
  return () => {
    const sample = means.map((mean, place) => {
      if (vocabulary > 0) {
        const share = 0.5 + shape(place) / 4;
        return Math.min(vocabulary - 1, Math.max(0, Math.floor(share * vocabulary)));
      }
      return Number((mean + scales[place] * shape(place)).toPrecision(6));
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
  if (samples.length > 0 && samples[0].length === 1) return samples.map(([value]) => value).join(" ");
  return samples.map((sample) => sample.join(", ")).join("\n");
}
