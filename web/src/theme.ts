// Light or dark, as the reader's system is set until the button is pressed; paper is always light.
import { options } from "preact";
import { effect, signal } from "@preact/signals";

export const theme = signal<"light" | "dark">(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

/** Renders a change before this returns, because printing does not wait. */
function atOnce(change: () => void): void {
  const usual = options.debounceRendering;
  options.debounceRendering = (draw) => draw();
  change();
  options.debounceRendering = usual;
}

addEventListener("beforeprint", () => {
  const before = theme.value, shut = [...document.querySelectorAll<HTMLDetailsElement>("details:not([open])")];
  atOnce(() => (theme.value = "light"));
  for (const each of shut) each.open = true;
  addEventListener("afterprint", () => {
    theme.value = before;
    for (const each of shut) each.open = false;
  }, { once: true });
});
