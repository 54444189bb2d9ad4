// Shapes that can be pressed, also by keyboard.
export function pressed(act: () => void) {
  return {
    role: "button" as const,
    tabindex: 0, // in SVG names are told apart by case
    onClick: act,
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
    },
  };
}
