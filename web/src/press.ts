// Makes shapes clickable, also by keyboard.
export function pressed(act: () => void) {
  return {
    role: "button" as const,
    tabindex: 0, // SVG attribute names are case-sensitive
    onClick: act,
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
    },
  };
}
