package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	width      = 96 // of the terminal, at least
	whoWidth   = 5
	indent     = 7 + 2 + whoWidth // seconds, a gap, who
	grantsLine = 8                // grants are told by so many at a time
	all        = "all"            // who, when it is everybody that can
)

// tone is how a line looks on a terminal.
type tone string

const (
	plain tone = ""
	title tone = "\x1b[1m"
	good  tone = "\x1b[32m"
	bad   tone = "\x1b[31m"
	faint tone = "\x1b[2m"
	reset      = "\x1b[0m"
)

// story tells what happens, as it happens. One goroutine uses it at a time.
type story struct {
	out    io.Writer
	colour bool
	begun  time.Time
	grants []grant // not told yet
}

// newStory writes to out, in colour if that is a terminal and NO_COLOR isn't set.
func newStory(out io.Writer) *story {
	return &story{out: out, colour: isTerminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", begun: time.Now()}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// say tells something about somebody.
func (s *story) say(t tone, who, format string, args ...any) {
	s.flushGrants()
	s.line(t, who, fmt.Sprintf(format, args...))
}

// grant tells of a grant, together with others that nothing comes between.
func (s *story) grant(g grant) {
	s.grants = append(s.grants, g)
	if len(s.grants) == grantsLine {
		s.flushGrants()
	}
}

func (s *story) flushGrants() {
	if len(s.grants) == 0 {
		return
	}
	// Reports of two processes may overtake each other, tokens don't.
	slices.SortFunc(s.grants, func(a, b grant) int { return cmp.Compare(a.token, b.token) })
	text := "granted (holder, token):"
	for i, g := range s.grants {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %s %d", g.holder, g.token)
	}
	s.grants = nil
	s.line(faint, "", text)
}

// line writes a text beside the time and the name, over as many lines as it needs.
func (s *story) line(t tone, who, text string) {
	head := fmt.Sprintf("%7.2f  %-*s", time.Since(s.begun).Seconds(), whoWidth, who)
	for _, part := range wrap(text, width-indent) {
		fmt.Fprintln(s.out, head+s.paint(t, part))
		head = strings.Repeat(" ", indent)
	}
}

// heading writes a text after an empty line, with the lines after the first one
// below the text after its label.
func (s *story) heading(label, text string) {
	fmt.Fprintln(s.out)
	head := s.paint(title, label)
	for _, part := range wrap(text, width-len(label)) {
		fmt.Fprintln(s.out, head+s.paint(title, part))
		head = strings.Repeat(" ", len(label))
	}
}

func (s *story) paint(t tone, text string) string {
	if !s.colour || t == plain {
		return text
	}
	return string(t) + text + reset
}

// wrap breaks a text between words.
func wrap(text string, columns int) []string {
	var lines []string
	var line string
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= columns:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
