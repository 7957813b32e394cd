"use strict";
(() => {
  const root = document.documentElement;
  const asked = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const drawn = new Map(); // element -> which of its plots is shown

  const remembered = () => { try { return localStorage.getItem("osscl-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("osscl-theme", theme); } catch { /* a file may have no storage */ } };

  function paint(theme) {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    for (const element of drawn.keys()) draw(element);
  }

  // "@name" is a colour of the page, "@name/0.2" the same, see-through.
  function resolved(value, style) {
    if (typeof value === "string" && value.startsWith("@")) {
      const [name, share] = value.slice(1).split("/");
      const color = style.getPropertyValue(`--${name}`).trim();
      return share ? color + Math.round(255 * Number(share)).toString(16).padStart(2, "0") : color;
    }
    if (Array.isArray(value)) return value.map((item) => resolved(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, style)]));
    }
    return value;
  }

  const AXIS = { gridcolor: "@grid", zerolinecolor: "@line", linecolor: "@line", tickcolor: "@line", title: { font: { size: 13 } } };
  const LOOK = {
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "@ink" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: AXIS, yaxis: AXIS,
    hoverlabel: { bgcolor: "@card", bordercolor: "@line", font: { color: "@ink" } },
  };

  function hiddenKeys(element) {
    const found = new Set();
    for (let scope = element.closest(".legend-scope"); scope; scope = scope.parentElement.closest(".legend-scope")) {
      for (const key of scope.querySelectorAll(":scope > .legend button[aria-pressed=false]")) found.add(key.dataset.key);
    }
    return found;
  }

  function draw(element) {
    const box = element.closest("figure");
    const plots = JSON.parse(box.querySelector("script").textContent);
    const slider = box.querySelector("input[type=range]");
    const { data, layout } = plots[slider ? Number(slider.value) : 0];
    const style = getComputedStyle(root);
    const hidden = hiddenKeys(element);
    const traces = data.map((trace) => ({ ...trace, visible: !hidden.has(trace.legendgroup) }));
    const margin = { l: 46, r: 14, t: 14, b: 40, ...layout.margin };
    const whole = { ...layout, margin, showlegend: false, dragmode: false, template: { layout: LOOK } };
    drawn.set(element, true);
    return Plotly.react(element, resolved(traces, style), resolved(whole, style), { displayModeBar: false, responsive: true });
  }

  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (isIntersecting && !drawn.has(target)) draw(target);
    }
  }, { rootMargin: "600px" });

  for (const element of document.querySelectorAll(".plot")) near.observe(element);
  window.addEventListener("beforeprint", () => {
    for (const element of document.querySelectorAll(".plot")) if (element.checkVisibility()) draw(element);
  });

  for (const legend of document.querySelectorAll(".legend")) {
    legend.addEventListener("click", (event) => {
      const key = event.target.closest("button");
      if (!key) return;
      key.setAttribute("aria-pressed", String(key.getAttribute("aria-pressed") !== "true"));
      for (const element of legend.closest(".legend-scope").querySelectorAll(".plot")) if (drawn.has(element)) draw(element);
    });
  }

  for (const slider of document.querySelectorAll(".slider")) {
    const names = JSON.parse(slider.dataset.names);
    slider.querySelector("input").addEventListener("input", (event) => {
      slider.querySelector("output").value = names[Number(event.target.value)];
      draw(slider.closest("figure").querySelector(".plot"));
    });
  }

  for (const panels of document.querySelectorAll(".panels")) {
    const choice = panels.querySelector("select");
    const show = () => {
      for (const panel of panels.querySelectorAll(".panel")) panel.hidden = panel.id !== choice.value;
    };
    choice.addEventListener("change", show);
    show();
    panels.querySelector(".chooser").hidden = choice.options.length < 2;
    panels.classList.toggle("chosen", choice.options.length > 1);
  }

  const menu = document.querySelector(".menu");
  document.addEventListener("click", (event) => {
    if (menu && (event.target.closest(".menu a") || !menu.contains(event.target))) menu.open = false;
  });
  menu?.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });

  button.addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    remember(theme);
    paint(theme);
  });
  asked.addEventListener("change", () => { if (!remembered()) paint(asked.matches ? "dark" : "light"); });
  paint(remembered() ?? (asked.matches ? "dark" : "light"));
})();
