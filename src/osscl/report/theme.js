"use strict";
/* Light and dark: as the system is, until the button is pressed; the choice is remembered where there is storage. */
const system = matchMedia("(prefers-color-scheme: dark)");
function stored() { // a page from disk may have none
  try { return localStorage.getItem("osscl-theme"); } catch { return null; }
}
function applyTheme(chosen) {
  const dark = (chosen ?? (system.matches ? "dark" : "light")) === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light" : "Dark";
}
function followTheme(render) {
  document.getElementById("theme").addEventListener("click", () => {
    const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("osscl-theme", other); } catch { /* it then holds until the page is closed */ }
    applyTheme(other);
    render();
  });
  system.addEventListener("change", () => {
    applyTheme(stored());
    render();
  });
  applyTheme(stored());
}
