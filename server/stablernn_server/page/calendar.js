// Timestamps, in milliseconds since 1970 (UTC): parsing, formatting, and the steps of a frequency on the calendar.

const DAY = 86_400_000;
const FIXED = Object.fromEntries(
  [
    [["S", "s", "second"], 1000],
    [["T", "min", "minute"], 60_000],
    [["H", "h", "hour"], 3_600_000],
    [["D", "day"], DAY],
    [["W", "week"], 7 * DAY],
  ].flatMap(([aliases, size]) => aliases.map((alias) => [alias, size])),
);
const MONTHS = Object.fromEntries(
  [
    [["M", "month", "MS", "ME", "BMS", "BME"], 1],
    [["Q", "quarter", "QS", "QE", "BQS", "BQE"], 3],
    [["Y", "year", "YS", "YE", "BYS", "BYE"], 12],
  ].flatMap(([aliases, count]) => aliases.map((alias) => [alias, count])),
);
const WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const TIME = /^(\d{4})[-/](\d\d?)(?:[-/](\d\d?))?(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?\s*(Z|z|[+-]\d\d:?\d\d)?$/;

/** Parses a date, optionally with a time of day and a zone (default: UTC); null for anything else. */
export function parseTime(text) {
  const parts = TIME.exec(text.trim());
  if (parts === null) return null;
  const [year, month, day, hour, minute, second] = parts.slice(1, 7).map((part) => Number(part ?? 0));
  const time = Date.UTC(year, month - 1, day || 1, hour, minute, second, Math.floor(1000 * Number(`0.${parts[7] ?? 0}`)));
  const date = new Date(time);
  // Date.UTC turns February 31 into March 2.
  if (date.getUTCMonth() !== month - 1 || date.getUTCDate() !== (day || 1) || hour > 23 || minute > 59 || second > 59) return null;
  const zone = /([+-])(\d\d):?(\d\d)/.exec(parts[8] ?? "");
  return zone === null ? time : time - Number(`${zone[1]}1`) * (60 * Number(zone[2]) + Number(zone[3])) * 60_000;
}

/** Parses a whole number in the unit of the model's training data (`data.stamps`); null if it is not a time. */
export function parseNumber(text, stamps) {
  if (stamps === "excel" && /^\d{5}(\.\d+)?$/.test(text)) return 1000 * Math.round((Number(text) - 25_569) * 86_400);
  if (!/^-?\d+$/.test(text)) return null;
  if (stamps === "unix-s") return 1000 * Number(text);
  if (stamps === "unix-ms") return Number(text);
  if (stamps?.length !== text.length || !stamps.startsWith("yyyy")) return null;
  const year = text.slice(0, 4);
  if (stamps === "yyyymmdd") return parseTime(`${year}-${text.slice(4, 6)}-${text.slice(6)}`);
  const period = Number(text.slice(4));
  const [first, next] = [Number(year), Number(year) + 1].map((each) => firstDay(each, stamps));
  const time = stamps === "yyyyq" ? Date.UTC(Number(year), 3 * (period - 1)) : first + (period - 1) * (stamps === "yyyyww" ? 7 : 1) * DAY;
  return period > 0 && time < next ? time : null;
}

/** Returns the first day of a year; of its first week, that of January 4 from Monday on, for years and weeks. */
function firstDay(year, stamps) {
  if (stamps !== "yyyyww") return Date.UTC(year, 0, 1);
  return Date.UTC(year, 0, 4 - ((new Date(Date.UTC(year, 0, 4)).getUTCDay() + 6) % 7));
}

/** Formats a timestamp; only the date if `isDay`, for steps of whole days. */
export function timeText(time, isDay = false) {
  const text = new Date(time).toISOString();
  if (isDay) return text.slice(0, 10);
  return text.slice(0, text.endsWith(":00.000Z") ? 16 : 19).replace("T", " ");
}

/** Returns whether all timestamps are midnights. */
export function areDays(times) {
  return times.every((time) => time % DAY === 0);
}

/** Returns the timestamp `steps` steps of a frequency after another one; null if the frequency is not one of the calendar. */
export function advance(time, steps, frequency) {
  const rule = ruleOf(frequency);
  if (rule === null) return null;
  const offset = steps * rule.count;
  if (rule.unit in FIXED) return time + offset * FIXED[rule.unit];
  const date = new Date(time);
  if (rule.unit === "B") {
    // Days are counted from Monday; a weekend counts as the Friday before it.
    const weekday = (date.getUTCDay() + 6) % 7;
    const workday = Math.min(weekday, 4) + offset;
    return time + (7 * Math.floor(workday / 5) + (((workday % 5) + 5) % 5) - weekday) * DAY;
  }
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  const targetMonth = month + offset * MONTHS[rule.unit];
  const isLast = day === lastDay(year, month);
  const wanted = rule.anchor > 0 ? Number(rule.anchor) : isLast && !rule.unit.endsWith("S") ? 31 : day;
  return Date.UTC(year, targetMonth, dayOf(year, targetMonth, rule.unit, wanted)) + (time % DAY);
}

function lastDay(year, month) {
  return new Date(Date.UTC(year, month + 1, 0)).getUTCDate();
}

/** Returns the day of a month on which a frequency has a step: that of its edge, else `day`, or the last one of a shorter month. */
function dayOf(year, month, unit, day) {
  const last = lastDay(year, month);
  if (!unit.startsWith("B")) return unit.endsWith("E") ? last : Math.min(day, last);
  const weekday = new Date(Date.UTC(year, month, unit.endsWith("E") ? last : 1)).getUTCDay();
  // From a Saturday or Sunday back to Friday, or on to Monday.
  return unit.endsWith("E") ? last - ({ 6: 1, 0: 2 }[weekday] ?? 0) : 1 + ({ 6: 2, 0: 1 }[weekday] ?? 0);
}

/** Returns the number of steps from one timestamp to another; null if it is not whole, or the frequency not one of the calendar. */
export function stepsBetween(from, to, frequency) {
  const rule = ruleOf(frequency);
  if (rule === null) return null;
  const size = FIXED[rule.unit] ?? (rule.unit === "B" ? 1.4 * DAY : 30.436875 * DAY * MONTHS[rule.unit]);
  const estimate = Math.round((to - from) / (size * rule.count));
  return [estimate, estimate - 1, estimate + 1].find((steps) => advance(from, steps, frequency) === to) ?? null;
}

/** Returns the first timestamp of 2024 on the grid of a frequency, for generated series. */
export function firstOf2024(frequency) {
  const { unit, anchor } = ruleOf(frequency) ?? { unit: "D" };
  if (unit === "W" && anchor) return Date.UTC(2024, 0, 1 + ((WEEKDAYS.indexOf(anchor) + 6) % 7));
  const month = unit.endsWith("E") ? MONTHS[unit] - 1 : 0;
  return Date.UTC(2024, month, unit in MONTHS ? dayOf(2024, month, unit, anchor > 0 ? Number(anchor) : 1) : 1);
}

function ruleOf(frequency) {
  const [, count, unit, anchor] = /^(\d*)([A-Za-z]+)(?:-([A-Z]{3}|\d\d?))?$/.exec(frequency ?? "") ?? [];
  return unit in FIXED || unit in MONTHS || unit === "B" ? { count: Number(count || 1), unit, anchor } : null;
}
