"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  // Plotly takes a few tags, and mathematics between dollars, in texts: names and reasons are to be shown, not obeyed.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const log = (v, on) => (on ? Math.log10(v) : v);

  function oneTwoFive([low, high]) {
    const values = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) values.push(...[1, 2, 5].map((v) => v * 10 ** decade));
    return values;
  }

  function axis(a, across) {
    const made = { title: { text: plain(a.title) }, type: a.log ? "log" : "linear", gridcolor: colour("--rule"), zeroline: false, linecolor: colour("--rule"), automargin: true };
    if (a.span) made.range = a.span.map((v) => log(v, a.log));
    if (a.ticks.length) Object.assign(made, { tickvals: a.ticks.map((t) => t[0]), ticktext: a.ticks.map((t) => plain(t[1])), showgrid: false });
    if (across && a.ticks.length > 6) Object.assign(made, { tickangle: -60, tickfont: { size: 10 } }); // else Plotly drops names
    if (a.log) {
      const decades = Math.log10(a.span[1] / a.span[0]);
      if (decades > 2) made.dtick = decades > 5 ? 2 : 1;
      else Object.assign(made, { tickvals: oneTwoFive(a.span), tickformat: ",~r" }); // Plotly's own say 2 for 20 as for 200
    }
    return made;
  }

  function layout(p) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--ink"), size: 12 }, showlegend: false,
      margin: { l: 50, r: 10, t: 8, b: 40 }, hovermode: "closest", xaxis: axis(p.x, true), yaxis: axis(p.y, false), dragmode: "zoom",
      hoverlabel: { bgcolor: colour("--paper"), bordercolor: colour("--ink"), font: { color: colour("--ink") } },
    };
  }

  const short = (v) => Number(v.toPrecision(4));
  function hover(p, s) {
    return s.y.map((y, i) => {
      const value = p.y.ticks.length ? "" : `: ${short(y)} ${p.y.title}` + (s.low ? ` (${short(y - s.low[i])} to ${short(y + s.high[i])})` : "");
      return plain(`${s.name} ${data.texts[s.text[i]]}${value}`);
    });
  }

  function trace(p, s) {
    const roof = s.backend === "";
    const [ink, symbol] = roof ? [colour("--ink"), "circle"] : data.styles[s.backend];
    const t = {
      type: "scatter", name: plain(s.name), x: s.x, y: s.y, text: hover(p, s), hoverinfo: "text", mode: roof ? "lines" : s.joined ? "lines+markers" : "markers",
      line: { color: ink, width: roof ? 1.5 : 1, dash: s.hollow ? "dot" : roof ? "dash" : "solid" },
      marker: { color: ink, symbol: symbol + (s.hollow ? "-open" : ""), size: s.large ? 8.5 : 6, line: s.hollow ? { width: 1.6, color: ink } : { width: 0.5, color: colour("--ink") } },
    };
    if (s.low) t.error_y = { type: "data", symmetric: false, array: s.high, arrayminus: s.low, color: ink, thickness: 1, width: 2 };
    return t;
  }

  const shown = () => new Set([...document.querySelectorAll(".bar input[value]:checked")].map((box) => box.value));
  const visible = () => {
    const on = shown(), variants = document.getElementById("variants");
    return (s) => s.backend === "" || (on.has(s.backend) && (!variants || variants.checked || !s.variant));
  };

  function draw() {
    const see = visible();
    for (const p of data.panels) {
      const traces = p.series.map((s) => Object.assign(trace(p, s), { visible: see(s) }));
      Plotly.react(p.id, traces, layout(p), { displaylogo: false, responsive: true, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d"] });
    }
  }

  function theme(name) {
    root.dataset.theme = name;
    button.setAttribute("aria-pressed", String(name === "dark"));
    button.textContent = name === "dark" ? "Light" : "Dark";
    draw();
  }

  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = false;
  button.addEventListener("click", () => { chosen = true; theme(root.dataset.theme === "dark" ? "light" : "dark"); });
  system.addEventListener("change", (e) => { if (!chosen) theme(e.matches ? "dark" : "light"); });
  document.querySelector(".bar").addEventListener("change", draw);

  const rows = [...document.querySelectorAll("table.cells tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
  const filter = document.getElementById("filter");
  function narrow() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      count += row.hidden ? 0 : 1;
    }
    document.getElementById("shown").textContent = `${count} of ${rows.length} cells`;
  }
  filter.addEventListener("input", narrow);
  narrow();

  theme(system.matches ? "dark" : "light");
  document.body.dataset.drawn = String(data.panels.length);
})();
