// Lines and bands over steps, drawn as SVG in the available width, with labeled axes and a readout under the pointer.

import { areDays, timeText } from "./calendar.js";
import { el, number, svg } from "./dom.js";

const HEIGHT = 260;
const PANEL_HEIGHT = 150;
const MARGIN = { top: 12, right: 14, bottom: 38, left: 58 };
const MAX_WIDTH = 1200;
// Pixels from one label below the axis to the next: of step numbers, of dates, of dates with a time of day.
const LABEL_WIDTHS = { step: 65, day: 100, time: 140 };
// Units of time that labels stand on, in milliseconds; then in months.
const SECOND = 1000;
const HOUR = 3600 * SECOND;
const DAY = 24 * HOUR;
const UNITS = [1, 5, 15, 30, 60, 300, 900, 1800].map((seconds) => seconds * SECOND).concat([1, 2, 3, 6, 12].map((hours) => hours * HOUR), DAY, 2 * DAY, 7 * DAY);
const MONTHS = [1, 3, 12, 60, 120];
// Longer series are labeled by their steps: the time of each would be computed at each drawing.
const MAX_TIMED_STEPS = 20_000;

/** A plot that follows the width of its container.
 *
 * Its data: `{label, xLabel, yLabel, lines, bands, divider, timeOf}`. A line is `{name, values, start, kind}`: one value or null for
 * each step from the step `start` on; a band `{name, lower, upper, start, kind}`; `kind` is a class that style.css gives a color,
 * `divider` a step at which a vertical line is drawn. `timeOf` gives the timestamp of a step; without it, steps are numbered.
 */
export class Plot {
  constructor(height = HEIGHT) {
    this.height = height;
    this.drawing = svg("svg", { role: "img", class: "plot", height });
    this.readout = el("p", { class: "readout", "aria-hidden": "true" });
    this.legend = el("ul", { class: "legend" });
    this.element = el("div", { class: "plot-frame" }, this.drawing, el("div", { class: "plot-words" }, this.legend, this.readout));
    this.data = null;
    this.width = 0;
    new ResizeObserver(([entry]) => {
      const width = Math.min(MAX_WIDTH, Math.floor(entry.contentRect.width));
      if (width !== this.width && width > 0) {
        this.width = width;
        if (this.data !== null) this.draw(this.data);
      }
    }).observe(this.element);
    this.drawing.addEventListener("pointermove", (event) => this.showPointer(event));
    this.drawing.addEventListener("pointerleave", () => this.clearPointer());
  }

  draw(data) {
    this.data = data;
    if (this.width === 0) return;
    const { lines, bands = [], divider = null } = data;
    this.scales = scalesOf(data, this.width, this.height);
    const { x, y, steps } = this.scales;
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.drawing.setAttribute("width", this.width);
    this.drawing.setAttribute("aria-label", data.label);
    const bottom = this.height - MARGIN.bottom;
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    const between = divider === null ? [] : [svg("line", { class: "divider", x1: x(divider), x2: x(divider), y1: MARGIN.top, y2: bottom })];
    this.drawing.replaceChildren(
      ...axes(data, this.scales, this.width, this.height),
      ...bands.map((band) => svg("path", { class: `band ${band.kind}`, d: bandPath(band, x, y) })),
      ...between,
      ...lines.map((line) => svg("path", { class: `line ${line.kind}`, d: linePath(line, x, y, this.width) })),
      ...(steps[0] === steps[1] ? [] : [this.cursor]),
    );
    this.legend.replaceChildren(
      ...[...lines, ...bands].map(({ name, kind }) => el("li", { class: kind }, el("i", { "aria-hidden": "true" }), name)),
    );
    this.clearPointer();
  }

  showPointer(event) {
    if (this.data === null || this.width === 0) return;
    const { x, steps } = this.scales;
    const box = this.drawing.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right);
    const step = Math.min(steps[1], Math.max(steps[0], Math.round(steps[0] + share * (steps[1] - steps[0]))));
    this.cursor.setAttribute("x1", x(step));
    this.cursor.setAttribute("x2", x(step));
    this.cursor.setAttribute("visibility", "visible");
    const words = [];
    for (const { name, values, start } of this.data.lines) {
      const value = values[step - start];
      if (value !== undefined) words.push(`${name} ${value === null ? "missing" : number(value)}`);
    }
    for (const { name, lower, upper, start } of this.data.bands ?? []) {
      const index = step - start;
      if (lower[index] !== undefined) words.push(`${name} ${number(lower[index])} to ${number(upper[index])}`);
    }
    const { timeOf = null } = this.data;
    const when = timeOf === null ? "" : `${timeText(timeOf(step))}, `;
    this.readout.textContent = `${when}step ${step}: ${words.join(", ")}`;
  }

  clearPointer() {
    this.cursor?.setAttribute("visibility", "hidden");
    this.readout.textContent = "";
  }
}

/** One below another, a plot for each line, so that each has an axis of its own unit; takes the data of `Plot`. */
export class Plots {
  constructor() {
    this.plots = [];
    this.element = el("div", { class: "plots" });
  }

  draw(data) {
    const { lines } = data;
    if (this.plots.length !== lines.length) {
      this.plots = lines.map(() => new Plot(lines.length === 1 ? HEIGHT : PANEL_HEIGHT));
      this.element.replaceChildren(...this.plots.map(({ element }) => element));
    }
    lines.forEach((line, index) => {
      const label = lines.length === 1 ? data.label : `${line.name}. ${data.label}`;
      this.plots[index].draw({ ...data, label, lines: [line], yLabel: line.name, xLabel: index === lines.length - 1 ? data.xLabel : "" });
    });
  }
}

/** Returns round values that divide a range into about `pieces` parts. */
function ticks(from, to, pieces) {
  const rough = (to - from) / Math.max(1, pieces);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const values = [];
  for (let multiple = Math.ceil(from / step - 1e-9); multiple * step <= to + step * 1e-9; multiple += 1) values.push(multiple * step);
  return { values, step };
}

/** Returns the steps at whole minutes, hours, days or months, at most `most` of them; null if the series does not meet each of these. */
export function calendarSteps([first, last], timeOf, most) {
  if (last - first > MAX_TIMED_STEPS) return null;
  const steps = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  const dates = steps.map((step) => new Date(timeOf(step)));
  const month = (date) => 12 * date.getUTCFullYear() + date.getUTCMonth();
  // Days since 1970 began on a Thursday; weeks begin on a Monday.
  const isWhole = (unit) => (date) => (date.getTime() - (unit === 7 * DAY ? 4 * DAY : 0)) % unit === 0;
  const isFirst = (unit) => (date) => date.getTime() % DAY === 0 && date.getUTCDate() === 1 && month(date) % unit === 0;
  const rules = [...UNITS.map((unit) => [unit, isWhole(unit), (date) => date.getTime()]), ...MONTHS.map((unit) => [unit, isFirst(unit), month])];
  for (const [unit, matches, position] of rules) {
    const chosen = steps.filter((_, index) => matches(dates[index]));
    const between = Math.floor((position(dates.at(-1)) - position(dates[0])) / unit);
    if (chosen.length >= Math.max(2, between) && chosen.length <= Math.max(2, most)) return chosen;
  }
  return null;
}

function scalesOf({ lines, bands = [] }, width, height) {
  const spans = [...lines.map(({ values, start }) => [start, values.length]), ...bands.map(({ lower, start }) => [start, lower.length])];
  const first = Math.min(...spans.map(([start]) => start));
  const last = Math.max(first, ...spans.map(([start, length]) => start + length - 1));
  let [low, high] = [Infinity, -Infinity];
  for (const values of [...lines.map(({ values }) => values), ...bands.flatMap(({ lower, upper }) => [lower, upper])]) {
    for (const value of values) {
      if (value === null || value === undefined) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) [low, high] = [0, 1];
  // A flat line is in the middle, and no line at the edge.
  const room = high > low ? 0.06 * (high - low) : Math.max(Math.abs(high) * 0.1, 0.5);
  [low, high] = [low - room, high + room];
  const inner = width - MARGIN.left - MARGIN.right;
  const tall = height - MARGIN.top - MARGIN.bottom;
  return {
    steps: [first, last],
    values: [low, high],
    x: (step) => MARGIN.left + (inner * (step - first)) / Math.max(1, last - first),
    y: (value) => MARGIN.top + (tall * (high - value)) / (high - low),
  };
}

function axes({ xLabel, yLabel, timeOf = null }, { x, y, steps, values }, width, height) {
  const bottom = height - MARGIN.bottom;
  const parts = [];
  const upwards = ticks(...values, height < HEIGHT ? 3 : 4);
  for (const value of upwards.values) {
    parts.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }));
    parts.push(textLabel(tickText(value, upwards.step), { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }));
  }
  const isDay = timeOf !== null && areDays([timeOf(steps[0]), timeOf(steps[0] + 1)]);
  const pieces = width / LABEL_WIDTHS[timeOf === null ? "step" : isDay ? "day" : "time"];
  const onCalendar = timeOf === null ? null : calendarSteps(steps, timeOf, pieces);
  for (const step of onCalendar ?? ticks(...steps, pieces).values.filter((step) => Number.isInteger(step))) {
    const label = timeOf === null ? String(step).replace("-", "−") : timeText(timeOf(step), isDay);
    parts.push(svg("line", { class: "tick", x1: x(step), x2: x(step), y1: bottom, y2: bottom + 4 }));
    parts.push(textLabel(label, { x: x(step), y: bottom + 17, "text-anchor": "middle" }));
  }
  parts.push(svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
  parts.push(textLabel(xLabel, { x: width - MARGIN.right, y: height - 4, "text-anchor": "end", class: "title" }));
  parts.push(textLabel(yLabel, { x: -MARGIN.top, y: 11, transform: "rotate(-90)", "text-anchor": "end", class: "title" }));
  return parts;
}

function tickText(value, step) {
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return decimals > 6 || Math.abs(value) >= 1e7 ? number(value) : value.toFixed(decimals).replace("-", "−");
}

function textLabel(text, attributes) {
  return svg("text", attributes, text);
}

/** The path of a line; a missing value is a gap, a value between two gaps a dot. */
function linePath({ values, start }, x, y, width) {
  const parts = [];
  let open = false;
  for (const [step, value] of downsample(values, start, width)) {
    if (value === null || value === undefined) {
      open = false;
      continue;
    }
    parts.push(`${open ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}${open ? "" : "h0"}`);
    open = true;
  }
  return parts.join("");
}

/** Returns the points of a line; of a long one, only the lowest and the highest of each pixel column. */
function downsample(values, start, width) {
  const points = values.map((value, index) => [start + index, value]);
  const chunkSize = Math.ceil(values.length / width);
  if (chunkSize <= 2) return points;
  const extremes = [];
  for (let from = 0; from < points.length; from += chunkSize) {
    const chunk = points.slice(from, from + chunkSize);
    const present = chunk.filter(([, value]) => value !== null);
    if (present.length === 0) {
      extremes.push(chunk[0]);
      continue;
    }
    const low = present.reduce((best, point) => (point[1] < best[1] ? point : best));
    const high = present.reduce((best, point) => (point[1] > best[1] ? point : best));
    extremes.push(...[low, high].sort((a, b) => a[0] - b[0]));
  }
  return extremes;
}

function bandPath({ lower, upper, start }, x, y) {
  const at = (values) => values.map((value, index) => `${x(start + index).toFixed(1)} ${y(value).toFixed(1)}`);
  return lower.length === 0 ? "" : `M${[...at(upper), ...at(lower).reverse()].join("L")}Z`;
}
