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
const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const UNITS = [...[1, 5, 15, 30, 60, 300, 900, 1800].map((seconds) => seconds * 1000), ...[1, 2, 3, 6, 12, 24, 48, 168].map((hours) => hours * HOUR)];
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
    this.drawing = svg("svg.plot", { role: "img", height });
    this.readout = el("p.readout", { "aria-hidden": "true" });
    this.legend = el("ul.legend");
    this.element = el("div.plot-frame", this.drawing, el("div.plot-words", this.legend, this.readout));
    this.data = null;
    this.width = 0;
    new ResizeObserver(([entry]) => {
      const width = Math.min(MAX_WIDTH, Math.floor(entry.contentRect.width));
      if (width === this.width) return;
      this.width = width;
      if (this.data !== null) this.draw(this.data);
    }).observe(this.element);
    this.drawing.onpointermove = (event) => this.showPointer(event);
    this.drawing.onpointerleave = () => this.clearPointer();
  }

  draw(data) {
    this.data = data;
    if (this.width === 0) return;
    const { lines, bands = [], divider = null } = data;
    this.scales = scalesOf(data, this.width, this.height);
    const { x, y, bottom, steps } = this.scales;
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.drawing.setAttribute("width", this.width);
    this.drawing.setAttribute("aria-label", data.label);
    const upright = (kind, step) => svg(`line.${kind}`, { x1: x(step), x2: x(step), y1: MARGIN.top, y2: bottom });
    const point = (step, value) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    this.cursor = upright("cursor", steps[0]);
    this.drawing.replaceChildren(
      ...axes(data, this.scales, this.width, this.height),
      ...bands.map((band) => svg(`path.band.${band.kind}`, { d: bandPath(band, point) })),
      ...(divider === null ? [] : [upright("divider", divider)]),
      ...lines.map((line) => svg(`path.line.${line.kind}`, { d: linePath(line, point, this.width) })),
      ...(steps[0] === steps[1] ? [] : [this.cursor]),
    );
    this.legend.replaceChildren(...[...lines, ...bands].map(({ name, kind }) => el(`li.${kind}`, el("i", { "aria-hidden": "true" }), name)));
    this.clearPointer();
  }

  showPointer({ clientX }) {
    if (!this.scales) return;
    const { x, inner, steps } = this.scales;
    const share = (clientX - this.drawing.getBoundingClientRect().left - MARGIN.left) / inner;
    const step = Math.min(steps[1], Math.max(steps[0], Math.round(steps[0] + share * (steps[1] - steps[0]))));
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, x(step));
    this.cursor.setAttribute("visibility", "visible");
    const { lines, bands = [], timeOf } = this.data;
    const words = [
      ...lines.map(({ name, values, start }) => [name, values[step - start]]).map(([name, value]) => value !== undefined && `${name} ${value === null ? "missing" : number(value)}`),
      ...bands.map(({ name, lower, upper, start }) => step >= start && `${name} ${number(lower[step - start])} to ${number(upper[step - start])}`),
    ];
    const when = timeOf ? `${timeText(timeOf(step))}, ` : "";
    this.readout.textContent = `${when}step ${step}: ${words.filter(Boolean).join(", ")}`;
  }

  clearPointer() {
    this.cursor?.setAttribute("visibility", "hidden");
    this.readout.textContent = "";
  }
}

/** One below another, a plot for each line, so that each has an axis of its own unit; takes the data of `Plot`. */
export class Plots {
  plots = [];
  element = el("div.plots");

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

/** Lines of the first features of some rows, of which the first is that of the step `start`. */
export function featureLines(names, rows, start) {
  return names.slice(0, 6).map((name, index) => ({ name, values: rows.map((row) => row[index] ?? null), start, kind: `series-${index}` }));
}

/** Data of a plot with a forecast of the steps after those of some lines: its `mean`, bands from the outermost pair of its quantiles
 * `levels`, `[[level, values], ...]` in their order, inwards, and the values that `followed` instead. */
export function withForecast(lines, { mean, levels, noun = "quantiles" }, followed = []) {
  const start = lines[0].start + lines[0].values.length;
  const bands = levels.slice(0, Math.floor(levels.length / 2)).map(([low, lower], index) => {
    const [high, upper] = levels.at(-1 - index);
    return { name: `${noun} ${low} to ${high}`, lower, upper, start, kind: "quantiles" };
  });
  const actual = followed.length > 0 ? [{ name: "what followed", values: followed.slice(0, mean.length), start, kind: "actual" }] : [];
  return { divider: start - 0.5, lines: [...lines, ...actual, { name: "forecast", values: mean, start, kind: "forecast" }], bands };
}

/** Returns round values that divide a range into about `pieces` parts, and their distance. */
function ticks([from, to], pieces) {
  const rough = (to - from) / Math.max(1, pieces);
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
  const first = Math.ceil(from / size - 1e-9);
  return { values: Array.from({ length: Math.floor(to / size + 1e-9) - first + 1 || 0 }, (_, index) => (first + index) * size), size };
}

/** Returns the steps at whole minutes, hours, days or months, at most `most` of them; null if the series does not meet each of these. */
export function calendarSteps([first, last], timeOf, most) {
  if (last - first > MAX_TIMED_STEPS) return null;
  const dates = Array.from({ length: last - first + 1 }, (_, index) => new Date(timeOf(first + index)));
  const month = (date) => 12 * date.getUTCFullYear() + date.getUTCMonth();
  const isFirst = (date) => date % DAY === 0 && date.getUTCDate() === 1;
  const rules = [
    // Days since 1970 began on a Thursday; weeks begin on a Monday.
    ...UNITS.map((unit) => [unit, (date) => (date - (unit === 7 * DAY ? 4 * DAY : 0)) % unit === 0, Number]),
    ...MONTHS.map((unit) => [unit, (date) => isFirst(date) && month(date) % unit === 0, month]),
  ];
  for (const [unit, matches, position] of rules) {
    const chosen = [...dates.keys()].filter((index) => matches(dates[index]));
    const between = Math.floor((position(dates.at(-1)) - position(dates[0])) / unit);
    if (chosen.length >= Math.max(2, between) && chosen.length <= Math.max(2, most)) return chosen.map((index) => first + index);
  }
  return null;
}

function scalesOf({ lines, bands = [] }, width, height) {
  const all = [...lines, ...bands.flatMap(({ lower, upper, start }) => [lower, upper].map((values) => ({ values, start })))];
  const first = Math.min(...all.map(({ start }) => start));
  const last = Math.max(first, ...all.map(({ start, values }) => start + values.length - 1));
  let [low, high] = [Infinity, -Infinity];
  for (const value of all.flatMap(({ values }) => values)) {
    if ((value ?? null) === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) [low, high] = [0, 1];
  // A flat line is in the middle, and no line at the edge.
  const room = high > low ? 0.06 * (high - low) : Math.max(Math.abs(high) * 0.1, 0.5);
  [low, high] = [low - room, high + room];
  const inner = width - MARGIN.left - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  return {
    steps: [first, last],
    values: [low, high],
    inner,
    bottom,
    x: (step) => MARGIN.left + (inner * (step - first)) / Math.max(1, last - first),
    y: (value) => MARGIN.top + ((bottom - MARGIN.top) * (high - value)) / (high - low),
  };
}

function axes({ xLabel, yLabel, timeOf = null }, { x, y, bottom, steps, values }, width, height) {
  const right = width - MARGIN.right;
  const line = (kind, x1, x2, y1, y2) => svg(`line.${kind}`, { x1, x2, y1, y2 });
  const upwards = ticks(values, height < HEIGHT ? 3 : 4);
  const isDay = timeOf !== null && areDays([timeOf(steps[0]), timeOf(steps[0] + 1)]);
  const pieces = width / LABEL_WIDTHS[timeOf === null ? "step" : isDay ? "day" : "time"];
  const labeled = (timeOf && calendarSteps(steps, timeOf, pieces)) ?? ticks(steps, pieces).values.filter(Number.isInteger);
  return [
    ...upwards.values.flatMap((value) => [
      line("grid", MARGIN.left, right, y(value), y(value)),
      svg("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, tickText(value, upwards.size)),
    ]),
    ...labeled.flatMap((step) => [
      line("tick", x(step), x(step), bottom, bottom + 4),
      svg("text", { x: x(step), y: bottom + 17, "text-anchor": "middle" }, timeOf === null ? String(step).replace("-", "−") : timeText(timeOf(step), isDay)),
    ]),
    line("axis", MARGIN.left, right, bottom, bottom),
    svg("text.title", { x: right, y: height - 4, "text-anchor": "end" }, xLabel),
    svg("text.title", { x: -MARGIN.top, y: 11, transform: "rotate(-90)", "text-anchor": "end" }, yLabel),
  ];
}

function tickText(value, size) {
  const decimals = Math.max(0, -Math.floor(Math.log10(size) + 1e-9));
  return decimals > 6 || Math.abs(value) >= 1e7 ? number(value) : value.toFixed(decimals).replace("-", "−");
}

/** The path of a line; a missing value is a gap, a value between two gaps a dot. */
function linePath({ values, start }, point, width) {
  let isOpen = false;
  return extremes(values, width)
    .map((index) => {
      const value = values[index] ?? null;
      const command = value === null ? "" : `${isOpen ? "L" : "M"}${point(start + index, value)}${isOpen ? "" : "h0"}`;
      isOpen = value !== null;
      return command;
    })
    .join("");
}

/** Returns the places of the values of a line; of a long one, only of the lowest and the highest of each pixel column. */
function extremes(values, width) {
  const places = [...values.keys()];
  const size = Math.ceil(values.length / width);
  if (size <= 2) return places;
  return Array.from({ length: Math.ceil(places.length / size) }, (_, column) => {
    const chunk = places.slice(column * size, (column + 1) * size);
    const sorted = chunk.filter((place) => values[place] !== null).sort((a, b) => values[a] - values[b]);
    return sorted.length === 0 ? [chunk[0]] : [sorted[0], sorted.at(-1)].sort((a, b) => a - b);
  }).flat();
}

function bandPath({ lower, upper, start }, point) {
  const at = (values) => values.map((value, index) => point(start + index, value));
  return lower.length === 0 ? "" : `M${[...at(upper), ...at(lower).reverse()].join("L")}Z`;
}
