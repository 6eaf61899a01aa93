// Timestamps, as milliseconds since 1970 in UTC: how they are read and written, and how steps of a frequency lie on the calendar.

const DAY = 86_400_000;
const FIXED = Object.fromEntries(
  [
    [["S", "s", "second"], 1000],
    [["T", "min", "minute"], 60_000],
    [["H", "h", "hour"], 3_600_000],
    [["D", "day"], DAY],
    [["W", "week"], 7 * DAY],
  ].flatMap(([words, size]) => words.map((word) => [word, size])),
);
const MONTHS = { M: 1, month: 1, MS: 1, ME: 1, Q: 3, quarter: 3, QS: 3, QE: 3, Y: 12, year: 12, YS: 12, YE: 12 };
const WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const TIME = /^(\d{4})[-/](\d\d?)(?:[-/](\d\d?))?(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?\s*(Z|z|[+-]\d\d:?\d\d)?$/;

/** A date, perhaps with a time of day and a zone, as a timestamp; null for anything else. What says no zone is UTC. */
export function parseTime(text) {
  const parts = TIME.exec(text.trim());
  if (parts === null) return null;
  const [year, month, day, hour, minute, second] = parts.slice(1, 7).map((part) => Number(part ?? 0));
  const time = Date.UTC(year, month - 1, day || 1, hour, minute, second, Math.floor(1000 * Number(`0.${parts[7] ?? 0}`)));
  const date = new Date(time);
  // Date.UTC takes the 31st of February for the 2nd of March.
  if (date.getUTCMonth() !== month - 1 || date.getUTCDate() !== (day || 1) || hour > 23 || minute > 59 || second > 59) return null;
  const zone = /([+-])(\d\d):?(\d\d)/.exec(parts[8] ?? "");
  return zone === null ? time : time - Number(`${zone[1]}1`) * (60 * Number(zone[2]) + Number(zone[3])) * 60_000;
}

/** A whole number as a timestamp by what the model's training data called it (`data.stamps`); null where that is no time. */
export function parseNumber(text, stamps) {
  if (!/^-?\d+$/.test(text)) return null;
  if (stamps === "unix-s") return 1000 * Number(text);
  if (stamps === "unix-ms") return Number(text);
  return stamps === "yyyymmdd" && text.length === 8 ? parseTime(`${text.slice(0, 4)}-${text.slice(4, 6)}-${text.slice(6)}`) : null;
}

/** A timestamp for people: the date alone where `isDay` says that no step lies within a day. */
export function timeText(time, isDay = false) {
  const text = new Date(time).toISOString();
  if (isDay) return text.slice(0, 10);
  return text.slice(0, text.endsWith(":00.000Z") ? 16 : 19).replace("T", " ");
}

/** Whether all timestamps are midnights. */
export function areDays(times) {
  return times.every((time) => time % DAY === 0);
}

/** The timestamp `steps` steps of a frequency after another one; null where the frequency is not of the calendar. */
export function advance(time, steps, frequency) {
  const rule = ruleOf(frequency);
  if (rule === null) return null;
  const moved = steps * rule.count;
  if (rule.unit in FIXED) return time + moved * FIXED[rule.unit];
  const date = new Date(time);
  if (rule.unit === "B") {
    // Days are counted from Monday; a weekend counts as the Friday before it.
    const weekday = (date.getUTCDay() + 6) % 7;
    const place = Math.min(weekday, 4) + moved;
    return time + (7 * Math.floor(place / 5) + (((place % 5) + 5) % 5) - weekday) * DAY;
  }
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  const wanted = month + moved * MONTHS[rule.unit];
  const last = new Date(Date.UTC(year, wanted + 1, 0)).getUTCDate();
  const isLast = day === new Date(Date.UTC(year, month + 1, 0)).getUTCDate();
  const keepsEnd = isLast && !rule.unit.endsWith("S");
  return Date.UTC(year, wanted, keepsEnd ? last : Math.min(day, last)) + (time % DAY);
}

/** Steps of a frequency from one timestamp to another; null where it lies on none, or the frequency is not of the calendar. */
export function stepsBetween(from, to, frequency) {
  const rule = ruleOf(frequency);
  if (rule === null) return null;
  const size = FIXED[rule.unit] ?? (rule.unit === "B" ? 1.4 * DAY : 30.436875 * DAY * MONTHS[rule.unit]);
  const about = Math.round((to - from) / (size * rule.count));
  return [about, about - 1, about + 1].find((steps) => advance(from, steps, frequency) === to) ?? null;
}

/** The first timestamp of 2024 on the grid of a frequency, for series that are made up. */
export function firstOf2024(frequency) {
  const { unit, anchor } = ruleOf(frequency) ?? { unit: "D" };
  if (unit === "W" && anchor) return Date.UTC(2024, 0, 1 + ((WEEKDAYS.indexOf(anchor) + 6) % 7));
  // The day before the next period begins.
  return unit.endsWith("E") ? Date.UTC(2024, MONTHS[unit], 0) : Date.UTC(2024, 0, 1);
}

function ruleOf(frequency) {
  const [, count, unit, anchor] = /^(\d*)([A-Za-z]+)(?:-([A-Z]{3}))?$/.exec(frequency ?? "") ?? [];
  return unit in FIXED || unit in MONTHS || unit === "B" ? { count: Number(count || 1), unit, anchor } : null;
}
