package trial

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlot(t *testing.T) {
	t.Parallel()
	o := &Outcome{Number: "P0", What: "a < b", Series: []*Series{
		{Subject: "we & co", Role: Ours, Figure: "gap", Unit: Micros, Median: 500},
		{Subject: "we & co", Role: Ours, Figure: "second", Unit: Micros, Median: 9},
		{Subject: "they", Role: Peer, Figure: "gap", Unit: Micros, Median: 5000},
		{Subject: "others", Role: Peer, Figure: "rate", Unit: PerSecond, Median: 5},
	}}
	dir := t.TempDir()
	if err := o.WritePlot(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "p0.svg"))
	if err != nil {
		t.Fatal(err)
	}
	bars := 0
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if bars != 1+2 || !strings.Contains(string(text), "we &amp; co") || strings.Contains(string(text), "others") {
		t.Errorf("%d rectangles in\n%s", bars, text)
	}
}
