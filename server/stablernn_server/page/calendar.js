// Timestamps, in milliseconds since 1970 (UTC): parsing, formatting, and the steps of a frequency on the calendar.

const DAY = 86_400_000;
const FIXED = { s: 1000, second: 1000, t: 60_000, min: 60_000, minute: 60_000, h: 3_600_000, hour: 3_600_000, d: DAY, day: DAY, w: 7 * DAY, week: 7 * DAY };
const MONTHS = { m: 1, q: 3, y: 12 };
const WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const TIME = /^(\d{4})[-/](\d\d?)(?:[-/](\d\d?))?(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?\s*(Z|z|[+-]\d\d:?\d\d)?$/;

/** Parses a date, optionally with a time of day and a zone (default: UTC); null for anything else. */
export function parseTime(text) {
  const parts = TIME.exec(text.trim());
  if (parts === null) return null;
  const [year, month, day = 1, hour = 0, minute = 0, second = 0] = parts.slice(1, 7).map((part) => part && Number(part));
  const time = Date.UTC(year, month - 1, day, hour, minute, second, Math.floor(1000 * Number(`0.${parts[7] ?? 0}`)));
  const date = new Date(time);
  // Date.UTC turns February 31 into March 2.
  if (date.getUTCMonth() !== month - 1 || date.getUTCDate() !== day || hour > 23 || minute > 59 || second > 59) return null;
  const [, sign, hours, minutes] = /([+-])(\d\d):?(\d\d)/.exec(parts[8]) ?? ["", "+", 0, 0];
  return time - Number(`${sign}1`) * (60 * Number(hours) + Number(minutes)) * 60_000;
}

/** Parses a whole number in the unit of the model's training data (`data.stamps`); null if it is not a time. */
export function parseNumber(text, stamps) {
  if (stamps === "excel" && /^\d{5}(\.\d+)?$/.test(text)) return 1000 * Math.round((Number(text) - 25_569) * 86_400);
  if (!/^-?\d+$/.test(text)) return null;
  if (stamps === "unix-s") return 1000 * Number(text);
  if (stamps === "unix-ms") return Number(text);
  if (stamps?.length !== text.length || !stamps.startsWith("yyyy")) return null;
  const [year, period] = [Number(text.slice(0, 4)), Number(text.slice(4))];
  if (stamps === "yyyymmdd") return parseTime(`${year}-${text.slice(4, 6)}-${text.slice(6)}`);
  // The first week is that of January 4, from Monday on.
  const first = (y) => Date.UTC(y, 0, stamps === "yyyyww" ? 4 - weekday(Date.UTC(y, 0, 4)) : 1);
  const time = stamps === "yyyyq" ? Date.UTC(year, 3 * (period - 1)) : first(year) + (period - 1) * (stamps === "yyyyww" ? 7 : 1) * DAY;
  return period > 0 && time < first(year + 1) ? time : null;
}

/** Days since Monday. */
function weekday(time) {
  return (new Date(time).getUTCDay() + 6) % 7;
}

/** Formats a timestamp; only the date if `isDay`, for steps of whole days. */
export function timeText(time, isDay = false) {
  const text = new Date(time).toISOString();
  return text.slice(0, isDay ? 10 : text.endsWith(":00.000Z") ? 16 : 19).replace("T", " ");
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
  if (rule.size !== undefined) return time + offset * rule.size;
  if (rule.unit === "B") {
    // Days are counted from Monday; a weekend counts as the Friday before it.
    const day = weekday(time);
    const workday = Math.min(day, 4) + offset;
    return time + (7 * Math.floor(workday / 5) + (((workday % 5) + 5) % 5) - day) * DAY;
  }
  const date = new Date(time);
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  const isLast = day === lastDay(year, month) && !rule.unit.endsWith("S");
  return dateOf(year, month + offset * rule.months, rule, isLast ? 31 : day) + (time % DAY);
}

function lastDay(year, month) {
  return new Date(Date.UTC(year, month + 1, 0)).getUTCDate();
}

/** Returns the day of a month on which a frequency has a step: that of its edge or anchor, else `day`, or the last one of a shorter month. */
function dateOf(year, month, { unit, anchor }, day) {
  const last = lastDay(year, month);
  const isEnd = unit.endsWith("E");
  if (!unit.startsWith("B")) return Date.UTC(year, month, isEnd ? last : Math.min(anchor > 0 ? anchor : day, last));
  const edge = Date.UTC(year, month, isEnd ? last : 1);
  // From a Saturday or Sunday back to Friday, or on to Monday.
  const beyond = weekday(edge) - (isEnd ? 4 : 7);
  return weekday(edge) > 4 ? edge - beyond * DAY : edge;
}

/** Returns the number of steps from one timestamp to another; null if it is not whole, or the frequency not one of the calendar. */
export function stepsBetween(from, to, frequency) {
  const rule = ruleOf(frequency);
  if (rule === null) return null;
  const size = rule.size ?? (rule.unit === "B" ? 1.4 : 30.436875 * rule.months) * DAY;
  const estimate = Math.round((to - from) / (size * rule.count));
  return [estimate, estimate - 1, estimate + 1].find((steps) => advance(from, steps, frequency) === to) ?? null;
}

/** Returns the first timestamp of 2024 on the grid of a frequency, for generated series. */
export function firstOf2024(frequency) {
  const rule = ruleOf(frequency);
  if (rule?.months) return dateOf(2024, rule.unit.endsWith("E") ? rule.months - 1 : 0, rule, 1);
  return Date.UTC(2024, 0, rule?.unit === "W" && rule.anchor ? 1 + ((WEEKDAYS.indexOf(rule.anchor) + 6) % 7) : 1);
}

/** A frequency as `{count, unit, anchor}`, with the `size` of its step in milliseconds, or its `months`; null for others. */
function ruleOf(frequency) {
  const [, count, unit, anchor] = /^(\d*)([A-Za-z]+)(?:-([A-Z]{3}|\d\d?))?$/.exec(frequency) ?? [];
  const letter = /^(?:B?([MQY])[SE]?|(m)onth|(q)uarter|(y)ear)$/.exec(unit)?.slice(1).join("");
  const rule = { count: Number(count || 1), unit, anchor, size: FIXED[unit?.toLowerCase()], months: MONTHS[letter?.toLowerCase()] };
  return rule.size || rule.months || unit === "B" ? rule : null;
}
