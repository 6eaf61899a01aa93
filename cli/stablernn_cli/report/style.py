"""Style sheet of a certificate document: black on white, and page breaks for A4."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light; }
body { font: 10pt/1.42 "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; color: #111; background: #fff;
  max-width: 178mm; margin: 8mm auto; padding: 0 6mm; }
h1 { font-size: 19pt; margin: 0 0 1mm; }
h2 { font-size: 13.5pt; margin: 8mm 0 2mm; border-bottom: 1.5px solid #111; padding-bottom: 1mm; }
h3 { font-size: 11pt; margin: 5mm 0 1.5mm; }
p { margin: 0 0 2.2mm; }
ul, ol { margin: 0 0 2.2mm; padding-left: 5mm; }
li { margin-bottom: .8mm; }
table { border-collapse: collapse; width: 100%; margin: 1mm 0 3.5mm; font-size: 8.6pt; line-height: 1.32; }
th, td { border: .6pt solid #999; padding: 1mm 1.6mm; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
thead th { background: #f0f0f0; overflow-wrap: normal; }
thead { display: table-header-group; }
tr { break-inside: avoid; }
table.facts th { width: 34mm; background: #f7f7f7; font-weight: 600; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
table.claims th:nth-child(1) { width: 24%; } table.claims th:nth-child(2) { width: 15%; }
table.claims th:nth-child(3) { width: 12%; } table.claims th:nth-child(4) { width: 12%; }
table.methods th:nth-child(2) { width: 42%; } table.methods th:nth-child(3) { width: 24%; }
table.clauses th:nth-child(1) { width: 20%; } table.clauses th:nth-child(5) { width: 8%; }
table.clauses th:nth-child(2), table.clauses th:nth-child(3), table.clauses th:nth-child(4) { width: 24%; }
code, .digest { font-family: "DejaVu Sans Mono", Consolas, monospace; font-size: 8.2pt; overflow-wrap: anywhere; }
.badge { display: inline-block; font-size: 7.5pt; font-weight: 700; letter-spacing: .06em; padding: .2mm 1.4mm;
  margin-right: 1.5mm; vertical-align: 8%; }
.proved { border: 1.5pt solid #8a3c00; color: #8a3c00; background: #fff; }
.observed { border: 1.5pt dashed #00507d; color: #00507d; background: #fff; }
.part { padding-left: 3.2mm; }
.part.is-proved { border-left: 3pt solid #d55e00; }
.part.is-observed { border-left: 3pt dashed #0072b2; }
.box { border: 1pt solid #111; padding: 2mm 3mm; margin: 2mm 0 3.5mm; }
td p:last-child, .box p:last-child, .box ul:last-child { margin-bottom: 0; }
.note { color: #333; font-size: 8.8pt; }
.no { font-weight: 700; }
figure { margin: 2mm 0 4mm; break-inside: avoid; }
figure img { display: block; max-width: 100%; max-height: 100mm; margin: 0 auto 1mm; }
figcaption { font-size: 8.6pt; color: #222; }
.sign td { height: 11mm; width: 33%; }
@media screen { .page { border-top: 1px dashed #bbb; padding-top: 1mm; } }
@media print {
  body { max-width: none; margin: 0; padding: 0; font-size: 9.6pt; }
  h2, h3, .lead { break-after: avoid; }
  table.facts, .sign { break-inside: avoid; }
  .page { break-before: page; }
  .front { font-size: 9pt; }
  .front h3 { margin-top: 3.2mm; }
  .front table.facts th, .front table.facts td { padding: .5mm 1.6mm; }
  .front li { margin-bottom: .3mm; }
  a { color: inherit; text-decoration: none; }
}
"""
PAGE = """
@page { size: A4; margin: 16mm 16mm 18mm;
  @bottom-left { content: "Stability certificate, weights %s"; font: 7.5pt sans-serif; color: #444; }
  @bottom-right { content: counter(page) " / " counter(pages); font: 7.5pt sans-serif; color: #444; }
}
"""
"""The pages of a print; the digest goes into the foot of each."""
