package trial

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// The colours of what is not data.
const (
	ink   = "#222222"
	faint = "#666666"
	grid  = "#dddddd"
)

// svg is a picture in the making.
type svg struct{ strings.Builder }

// newSVG begins a picture of that size, in pixels, on white: it is read on dark pages too.
func newSVG(width, height float64, title string) *svg {
	s := &svg{}
	fmt.Fprintf(s, "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "+
		"font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n", width, height, width, height)
	fmt.Fprintf(s, "<title>%s</title>\n", escape(title))
	fmt.Fprintf(s, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n")
	return s
}

// Where a text is, seen from its place.
const (
	onRight = "start"
	around  = "middle"
	onLeft  = "end"
)

func (s *svg) text(x, y float64, where, colour, text string) {
	fmt.Fprintf(s, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y, where, colour, escape(text))
}

func (s *svg) heading(x, y float64, text string) {
	fmt.Fprintf(s, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"15\" font-weight=\"bold\" fill=\"%s\">%s</text>\n", x, y, ink, escape(text))
}

func (s *svg) bar(x, y, width, height float64, colour string) {
	fmt.Fprintf(s, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, width, height, colour)
}

func (s *svg) line(x1, y1, x2, y2, width float64, colour string) {
	fmt.Fprintf(s, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke-width=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2, width, colour)
}

func (s *svg) dot(x, y float64, colour string) {
	fmt.Fprintf(s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y, colour)
}

// end returns the picture.
func (s *svg) end() []byte {
	s.WriteString("</svg>\n")
	return []byte(s.String())
}

// widthOf is about how wide a text is, in pixels: what shows it may have another font.
func widthOf(text string) float64 { return 6.5 * float64(len([]rune(text))) }

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
