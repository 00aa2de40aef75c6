package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pglock/pglock-go/internal/bench/trial"
)

// errInterrupted ends a run whose figures so far were printed.
var errInterrupted = errors.New("bench: interrupted: what is above is all that was measured")

// progress shows what is measured, how long it has taken and how long the rest will take: a line per
// row, and below it a line that changes if out is a terminal. One goroutine uses it.
type progress struct {
	out      io.Writer
	terminal bool
	rows     []trial.Row
	scale    trial.Scale

	began    time.Time
	current  int // of the rows; -1 before the first
	rowBegan time.Time
}

const (
	// liveEvery is how often the live line changes, and liveWidth how long it is at most: a longer one
	// would take several lines on a narrow terminal.
	liveEvery = 250 * time.Millisecond
	liveWidth = 79

	clearLine = "\r\x1b[K"
)

func newProgress(out io.Writer, rows []trial.Row, scale trial.Scale) *progress {
	p := &progress{out: out, rows: rows, scale: scale, began: time.Now(), current: -1}
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// begin shows the next row.
func (p *progress) begin() {
	p.current++
	p.rowBegan = time.Now()
	row := p.rows[p.current]
	fmt.Fprintf(p.out, "%-3s  row %d of %d, %s: %s\n", row.Number, p.current+1, len(p.rows), p.times(p.rowBegan), row.What)
}

// times tells the elapsed and the remaining time.
func (p *progress) times(now time.Time) string {
	var left time.Duration
	for i, row := range p.rows {
		switch {
		case i == p.current:
			left += max(row.Duration(p.scale)-now.Sub(p.rowBegan), 0)
		case i > p.current:
			left += row.Duration(p.scale)
		}
	}
	return fmt.Sprintf("%s elapsed, about %s left", clock(now.Sub(p.began)), clock(left))
}

// clock formats a duration as minutes and seconds.
func clock(d time.Duration) string {
	seconds := int(d.Round(time.Second).Seconds())
	return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
}

// await runs what, and shows meanwhile in which step it is. When ctx is done it returns errInterrupted at
// once, whatever state what is in: the process ends then.
func (p *progress) await(ctx context.Context, step func() string, what func() error) error {
	done := make(chan error, 1)
	go func() { done <- what() }()
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	defer p.live("")
	for {
		select { // an error that the interrupt has caused is an interrupt, whichever comes first
		case err := <-done:
			if err != nil && ctx.Err() != nil {
				return errInterrupted
			}
			return err
		case <-ctx.Done():
			return errInterrupted
		case <-tick.C:
			p.live(step())
		}
	}
}

// live replaces the live line, or clears it.
func (p *progress) live(step string) {
	if !p.terminal {
		return
	}
	line := ""
	if step != "" {
		line = fmt.Sprintf("     %s, %s", p.times(time.Now()), step)
	}
	if runes := []rune(line); len(runes) > liveWidth {
		line = string(runes[:liveWidth-1]) + "…"
	}
	fmt.Fprint(p.out, clearLine+line)
}
