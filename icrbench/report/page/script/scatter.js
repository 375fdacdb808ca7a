// Accuracy against cost: a dot a method. A line joins those that are better than all that cost as much or less.

const HEIGHT = 340;
const EDGE = { left: 44, right: 18, top: 14, bottom: 46 };
const WIDE_SPREAD = 20; // times the least cost, from where on the axis is logarithmic
const LETTER = 6.9; // pixels of one, about

// Costs that tell methods of a table apart.
const costsOf = (table) => Object.keys(DATA.costs).filter((name) => new Set(table.rows.map((row) => (row.costs[name] || [])[0]).filter((cost) => cost !== undefined)).size > 1);
const drawnCost = (table) => (costsOf(table).includes(shown.cost) ? shown.cost : costsOf(table)[0]);

function pointsOf(table) {
  const place = placeOf(table, drawnColumn(table));
  const cost = drawnCost(table);
  const points = methodsOf(table).map((row) => ({ row, score: scoresOf(table, row)[place], cost: row.costs[cost] })).filter(({ score, cost: known }) => score.mean !== undefined && known);
  points.sort((one, other) => one.cost[0] - other.cost[0] || (lowerIsBetter() ? 1 : -1) * (one.score.mean - other.score.mean));
  let best = null;
  for (const point of points) {
    point.ahead = best === null || (lowerIsBetter() ? point.score.mean < best : point.score.mean > best);
    if (point.ahead) best = point.score.mean;
  }
  return points;
}

// From costs to pixels. Where they lie far apart the axis is logarithmic, and nothing has a place of its own before it.
function costAxis(costs, width) {
  const least = Math.min(...costs.filter((cost) => cost > 0));
  const most = Math.max(...costs);
  const [left, right] = [EDGE.left + 10, width - EDGE.right];
  if (most / least < WIDE_SPREAD) {
    const step = [1, 2, 5].map((size) => size * 10 ** Math.floor(Math.log10(most / 4))).find((size) => most / size <= 6) || 10 ** Math.ceil(Math.log10(most / 4));
    const ticks = Array.from({ length: Math.floor((1.05 * most) / step) + 1 }, (_, place) => place * step);
    return { at: (cost) => left + ((right - left) * cost) / (1.05 * most), ticks };
  }
  const start = costs.includes(0) ? left + 30 : left;
  const [low, high] = [Math.log10(least) - 0.15, Math.log10(most) + 0.15];
  const at = (cost) => (cost === 0 ? left : start + ((right - start) * (Math.log10(cost) - low)) / (high - low));
  const powers = Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, place) => 10 ** (Math.ceil(low) + place));
  return { at, ticks: costs.includes(0) ? [0, ...powers] : powers };
}

function scatter(table, width) {
  const points = pointsOf(table);
  const { at, ticks } = costAxis(points.map(({ cost }) => cost[0]), width);
  const ends = points.flatMap(({ score }) => score.ci || [score.mean]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const margin = Math.max(1, 0.05 * (high - low));
  const bottom = HEIGHT - EDGE.bottom;
  const y = (value) => bottom - ((bottom - EDGE.top) * (value - low + margin)) / (high - low + 2 * margin);
  for (const point of points) [point.x, point.y] = [at(point.cost[0]), y(point.score.mean)];
  const line = (x1, y1, x2, y2, kind) => make("svg:line", { x1, y1, x2, y2, class: kind });
  const text = (x, place, words, kind) => make("svg:text", { x, y: place, class: kind }, words);
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const ahead = points.filter((point) => point.ahead);
  const steps = ahead.map((point, place) => `${place ? `H${point.x} V${point.y}` : `M${point.x},${point.y}`}`).join(" ");
  const axes = make("svg:g", { "aria-hidden": "true" },
    ticksOf(low - margin, high + margin).map((tick) => [line(EDGE.left, y(tick), width - EDGE.right, y(tick), "grid"), text(EDGE.left - 8, y(tick) + 4, String(tick), "end")]),
    ticks.map((tick) => [line(at(tick), bottom, at(tick), bottom + 5, "zero"), text(at(tick), bottom + 19, compact.format(tick), "middle")]),
    text((EDGE.left + width - EDGE.right) / 2, HEIGHT - 6, DATA.costs[drawnCost(table)], "middle"),
    make("svg:path", { class: "frontier", d: `${steps} H${width - EDGE.right}` }),
    points.map(({ x, score }) => (score.ci ? line(x, y(score.ci[0]), x, y(score.ci[1]), "whisker") : null)),
    names(points, width).map(({ point, x, anchor, height }) => text(x, height, shortName(point), `${anchor}${point.ahead ? " ahead" : ""}`)));
  const label = `${metricTitle()} against ${DATA.costs[drawnCost(table)]}. Arrow keys go from method to method, Enter opens one.`;
  const dots = points.map((point, place) => make("svg:g", {
    class: `point${point.ahead ? " ahead" : ""}`, role: "button", tabindex: place ? -1 : 0, "aria-haspopup": "dialog", "aria-label": `${point.row.name}: ${pointWords(table, point).join(", ")}` },
  make("svg:circle", { class: "reach", cx: point.x, cy: point.y, r: 12 }), make("svg:circle", { class: "dot", cx: point.x, cy: point.y, r: 5.5 })));
  return { points, dots, picture: make("svg:svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": label }, axes, dots) };
}

const shortName = ({ row }) => (row.name.length > 24 ? `${row.name.slice(0, 23)}…` : row.name);

const pointWords = (table, { score, cost }) => [
  `${metricTitle()} ${percent(score.mean)}${score.ci ? ` (${range(score.ci)})` : ""}`,
  `${DATA.costs[drawnCost(table)]}: ${cost[1]}`];

// Names where there is room for them, those on the line first; every other is shown when its dot is pointed at.
function names(points, width) {
  const taken = points.map(({ x, y }) => [x - 7, y - 7, x + 7, y + 7]);
  const ahead = points.filter((point) => point.ahead);
  ahead.forEach(({ x, y }, place) => taken.push([x, y - 2, place + 1 < ahead.length ? ahead[place + 1].x : width, y + 2]));
  const free = (box) => box[0] >= EDGE.left && box[2] <= width && box[1] >= 0 && box[3] <= HEIGHT - EDGE.bottom &&
    !taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
  const found = [];
  for (const point of [...points].sort((one, other) => other.ahead - one.ahead)) {
    const long = shortName(point).length * LETTER;
    const beside = [["start", 10, 4], ["end", -10, 4], ["middle", 0, -11], ["middle", 0, 20], ["start", 4, 20], ["end", -4, 20]];
    const places = point.ahead ? [["start", 4, -11], ["end", -4, -11], ...beside] : beside; // off the line
    for (const [anchor, right, down] of places) {
      const [x, height] = [point.x + right, point.y + down];
      const start = x - { start: 0, end: long, middle: long / 2 }[anchor];
      const box = [start, height - 12, start + long, height + 3];
      if (!free(box)) continue;
      taken.push(box);
      found.push({ point, x, anchor, height });
      break;
    }
  }
  return found;
}

function costPlot(table) {
  const tip = make("div", { class: "tip", "aria-hidden": "true", hidden: true });
  const holder = make("div", { class: "scatter" });
  const draw = (width) => {
    const { points, dots, picture } = scatter(table, width);
    const show = (place) => {
      tip.replaceChildren(make("b", {}, points[place].row.name), ...pointWords(table, points[place]).map((words) => make("span", {}, words)));
      tip.hidden = false;
      const room = width - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, points[place].x - tip.offsetWidth / 2))}px`;
      tip.style.top = `${points[place].y > tip.offsetHeight + 16 ? points[place].y - tip.offsetHeight - 14 : points[place].y + 16}px`;
    };
    const hide = () => { tip.hidden = true; };
    const go = (place) => {
      dots.forEach((dot, other) => dot.setAttribute("tabindex", other === place ? 0 : -1));
      dots[place].focus();
    };
    const keys = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    dots.forEach((dot, place) => {
      dot.addEventListener("focus", () => show(place));
      dot.addEventListener("blur", hide);
      dot.addEventListener("mouseenter", () => show(place));
      dot.addEventListener("mouseleave", hide);
      dot.addEventListener("click", () => showDetail(table, points[place].row));
      dot.addEventListener("keydown", (event) => {
        if (event.key in keys) go((place + keys[event.key] + dots.length) % dots.length);
        else if (event.key === "Home") go(0);
        else if (event.key === "End") go(dots.length - 1);
        else if (event.key === "Enter" || event.key === " ") showDetail(table, points[place].row);
        else if (event.key === "Escape") hide();
        else return;
        event.preventDefault();
      });
    });
    holder.replaceChildren(picture, tip);
  };
  let drawn = 0;
  new ResizeObserver(([{ contentRect: { width } }]) => {
    if (width && Math.round(width) !== drawn) draw(drawn = Math.round(width));
  }).observe(holder);
  return [holder, make("p", { class: "legend" },
    "Further up is better, further left is cheaper. The line joins the methods that no other beats for as much or less; thin lines are 95 % intervals. Seconds depend on what was in the cache.")];
}
