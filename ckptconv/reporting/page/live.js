// --- a page that is served: what is not on it is read when it is asked for ---
const served = data.live;
for (const column of [...STATS, "bins", "clip", "heat", "was"]) data[column] ||= {};
let waiting = new AbortController(); // of the tensor in sight: when it is left, the server stops reading
const ask = async (path) => {
  const got = await fetch(path, { signal: waiting.signal, headers: { Accept: "application/json" } });
  const answer = await got.json();
  if (!got.ok) throw new Error(answer.error || got.statusText);
  return answer;
};
const told = (box, error) => { if (error.name !== "AbortError") box.replaceChildren(make("p", { className: "badge error" }, error.message)); };
const busy = (box, text) => box.replaceChildren(make("p", { className: "soft" }, text));

const statistics = (i) => [
  facts(STATS.map((m) => [m, /zeros|nan|inf/.test(m) ? count(data[m][i]) : number(data[m][i])])),
  ...(data.bins[i] ? [make("div", { className: "pictures" }, histogram(i))] : []),
];
const read_values = (i) => {
  const box = make("div", { role: "status" });
  const show = () => box.replaceChildren(make("h3", {}, "Values"), ...statistics(i), ...(data.one[i] || []).map(([severity, title, text, index]) => make("p", { className: `badge ${severity}` }, make("b", {}, title), ` ${text} `, ...(index?.length ? [show_place(index)] : []))));
  const load = async () => {
    busy(box, `Reading ${bytes(data.bytes[i])} …`);
    try {
      const got = await ask(`tensor/${i}`);
      for (const m of [...STATS, "bins"]) data[m][i] = got[m][0];
      if (got.clip[0]) data.clip[i] = got.clip[0];
      data.one[i] = got.findings.map((f) => [f.severity, f.check, f.text, f.index]);
      show();
    } catch (error) { told(box, error); }
  };
  data.one ||= {};
  if (i in data.one) show();
  else if (data.bytes[i] <= served.most) load();
  else box.replaceChildren(make("p", {}, button(`Read all ${bytes(data.bytes[i])}: statistics and histogram`, load, { className: "plain" })));
  return box;
};

// The matrix of a tensor: from all of it, each cell the largest |x| in it, to single values.
const SIDE = 64, FACTOR = 8, LAST = [16, narrow.matches ? 3 : 8]; // cells of a picture; rows and columns that are shown as numbers
const matrix_of = (dims) => {
  const product = (list) => list.reduce((a, b) => a * b, 1), all = product(dims);
  const parts = dims.length > 1 ? dims.slice(1).map((_, k) => [product(dims.slice(0, k + 1)), product(dims.slice(k + 1))]) : [[1, all]];
  return parts.reduce((best, p) => (Math.max(...p) / Math.min(...p) < Math.max(...best) / Math.min(...best) ? p : best));
};
const place_of = (dims, row, column, wide) => { // the index of an element; BigInt, as there may be more than 2^53
  let at = BigInt(row) * BigInt(wide) + BigInt(column);
  return `[${[...dims].reverse().map((n) => { const k = at % BigInt(n); at /= BigInt(n); return String(k); }).reverse().join(", ")}]`;
};
let looking = null; // what zooms to a place
const look_into = (i) => {
  const dims = data.shapes[data.shape[i]], [high, wide] = matrix_of(dims), item = data.count[i] ? data.bytes[i] / data.count[i] : 0;
  const box = make("div", { className: "look" }), picture = make("div", {}), said = make("p", { className: "small", role: "status" });
  const within = (middle, size, most) => { const n = Math.min(most, Math.max(1, Math.round(size))), lo = Math.max(0, Math.min(most - n, Math.round(middle - n / 2))); return [lo, lo + n]; };
  let at = data.bytes[i] <= served.most ? [0, high, 0, wide] : [0, Math.min(SIDE, high), 0, Math.min(SIDE, wide)], drawn = null, marked = [];
  const extent = () => [at[1] - at[0], at[3] - at[2]];
  const go = async (to) => {
    at = to;
    const [rows, columns] = extent();
    busy(said, `Reading ${bytes(rows * columns * item)} …`);
    try {
      drawn = await ask(`region/${i}?at=${at.join(",")}`);
      draw_region();
    } catch (error) { told(said, error); }
  };
  const zoom = (row, column) => {
    const [rows, columns] = extent(), last = rows <= SIDE && columns <= SIDE;
    const less = (n, least) => (last ? Math.min(least, n) : n / FACTOR > 1.5 * SIDE ? n / FACTOR : Math.min(SIDE, n));
    go([...within(row, less(rows, LAST[0]), high), ...within(column, less(columns, LAST[1]), wide)]);
  };
  const out = () => { const [rows, columns] = extent(); go([...within((at[0] + at[1]) / 2, Math.max(SIDE, rows * FACTOR), high), ...within((at[2] + at[3]) / 2, Math.max(SIDE, columns * FACTOR), wide)]); };
  const pan = (down, right) => { const [rows, columns] = extent(); go([...within((at[0] + at[1]) / 2 + down * rows, rows, high), ...within((at[2] + at[3]) / 2 + right * columns, columns, wide)]); };
  const cell_at = (e, canvas) => {
    const area = canvas.getBoundingClientRect(), [m, n] = drawn.cells, [rows, columns] = extent();
    const r = Math.max(0, Math.min(m - 1, Math.floor(((e.clientY - area.top) / area.height) * m))), c = Math.max(0, Math.min(n - 1, Math.floor(((e.clientX - area.left) / area.width) * n)));
    return { r, c, row: at[0] + Math.ceil((r * rows) / m), column: at[2] + Math.ceil((c * columns) / n) };
  };
  const table_of = () => make("table", {}, make("thead", {}, make("tr", {}, make("td", {}), ...drawn.texts[0].map((_, c) => make("th", { scope: "col" }, count(at[2] + c))))),
    make("tbody", {}, ...drawn.texts.map((line, r) => make("tr", {}, make("th", { scope: "row" }, count(at[0] + r)), ...line.map((x, c) => make("td", { className: at[0] + r === marked[0] && at[2] + c === marked[1] ? "bad" : "" }, x))))));
  const canvas_of = () => {
    const canvas = shades(drawn.cells, "Cells of the matrix; the buttons zoom and move");
    canvas.addEventListener("click", (e) => { const { row, column } = cell_at(e, canvas); zoom(row, column); });
    canvas.addEventListener("pointermove", (e) => {
      const { r, c, row, column } = cell_at(e, canvas), place = place_of(dims, row, column, wide);
      canvas.title = drawn.texts ? `${place} = ${drawn.texts[r][c]}` : `from ${place}: click to enlarge`;
    });
    return canvas;
  };
  const draw_region = () => {
    const [rows, columns] = extent(), [m, n, , top] = drawn.cells, few = drawn.texts && rows <= LAST[0] && columns <= LAST[1];
    const span = (lo, hi, most, word) => `${word}${hi - lo > 1 ? "s" : ""} ${count(lo)}${hi - lo > 1 ? `–${count(hi - 1)}` : ""} of ${count(most)}`;
    said.replaceChildren(`${span(at[0], at[1], high, "Row")}, ${span(at[2], at[3], wide, "column")}, from ${place_of(dims, at[0], at[2], wide)}. `, few ? "" : drawn.texts ? `Each cell is one value, 0 to ${number(top)} in size.` : `Each cell is the largest |x| of ${count(Math.ceil(rows / m))} × ${count(Math.ceil(columns / n))} values, 0 to ${number(top)}; orange is larger, red is NaN or infinite.`);
    picture.replaceChildren(few ? make("div", { className: "numbers", tabIndex: 0, role: "region", "aria-label": "Values; scrolls" }, table_of()) : canvas_of());
    const whole = rows === high && columns === wide;
    press.replaceChildren(...[["Zoom in", () => zoom((at[0] + at[1]) / 2, (at[2] + at[3]) / 2), few], ["Zoom out", out, whole], ["←", () => pan(0, -1), at[2] === 0, "Left"], ["→", () => pan(0, 1), at[3] === wide, "Right"], ["↑", () => pan(-1, 0), at[0] === 0, "Up"], ["↓", () => pan(1, 0), at[1] === high, "Down"]]
      .map(([text, run, disabled, label]) => button(text, (e) => { const name = e.target.textContent; run(); press.dataset.last = name; }, { className: "plain", disabled, "aria-label": label || text })), ...(drawn.texts ? [button("CSV", () => take(new Blob([in_csv([["", ...drawn.texts[0].map((_, c) => at[2] + c)], ...drawn.texts.map((line, r) => [at[0] + r, ...line])])], { type: "text/csv" }), "values.csv"), LINK)] : []), ...(few ? [] : [as_png(picture.firstChild, data.names[i], said.textContent)]));
    [...press.children].find((b) => b.textContent === press.dataset.last && !b.disabled)?.focus({ preventScroll: true });
    delete press.dataset.last;
  };
  const press = make("p", { className: "tools" });
  box.append(make("h3", {}, "The matrix, down to single values"), press, picture, said);
  looking = (index) => {
    const flat = index.reduce((a, n, k) => a * BigInt(dims[k]) + BigInt(n), 0n), row = Number(flat / BigInt(wide)), column = Number(flat % BigInt(wide));
    marked = [row, column];
    go([...within(row, LAST[0], high), ...within(column, LAST[1], wide)]);
    box.scrollIntoView({ block: "nearest" });
  };
  if (data.count[i]) go(at); else box.hidden = true;
  return box;
};
const show_place = (index) => button("Show the place", () => looking(index), LINK);
$("detail").addEventListener("close", () => waiting.abort());

if (served.links.length) document.querySelector("header").append(make("p", { className: "tools" }, ...served.links.map(([text, href]) => make("a", { className: "plain", href }, text))));
$("how").textContent = "Values are read when they are asked for.";
