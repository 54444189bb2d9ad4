// The names of sites and heads: in full, and short for labels.
const OWN = /^(encoder|decoder)\.(\d+)\.(self|cross|feed)$/; // a site of Headway's models

export function siteOf(head: string): string {
  return head.slice(0, head.lastIndexOf("."));
}

export function numberOf(head: string): number {
  return Number(head.slice(head.lastIndexOf(".") + 1));
}

export function siteTitle(site: string): string {
  const found = OWN.exec(site);
  if (!found) return site;
  return `${found[1]![0]!.toUpperCase()}${found[1]!.slice(1)} ${found[3]} L${found[2]}`;
}

export function headTitle(head: string): string {
  return `${siteTitle(siteOf(head))} H${numberOf(head)}`;
}

export function shortHead(head: string): string {
  const found = OWN.exec(siteOf(head));
  return found ? `${found[1]!.slice(0, 3)} ${found[3]} L${found[2]}H${numberOf(head)}` : `${siteOf(head).slice(-22)} H${numberOf(head)}`;
}
