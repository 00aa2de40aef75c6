package readme

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Block is a fenced block of a document.
type Block struct {
	Language string // what follows the fence, such as go
	Line     int    // of the fence, counted from 1
	Text     string
}

// Document is a Markdown file, as far as the tests need it.
type Document struct {
	Blocks  []Block
	Anchors map[string]bool // of the headings, as GitHub derives them
	Links   []string        // the targets of links and pictures
	prose   strings.Builder
}

var (
	heading  = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	link     = regexp.MustCompile(`\]\(([^()\s]*)\)`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	codeSpan = regexp.MustCompile("`[^`]*`")
)

// Parse reads a document. Fenced blocks have neither links nor headings.
func Parse(text string) *Document {
	d := &Document{Anchors: map[string]bool{}}
	var open *Block
	number := 0
	for line := range strings.Lines(text) {
		number++
		trimmed := strings.TrimSpace(line)
		switch {
		case open != nil && trimmed == "```":
			d.Blocks = append(d.Blocks, *open)
			open = nil
		case open != nil:
			open.Text += line
		case strings.HasPrefix(trimmed, "```"):
			open = &Block{Language: strings.TrimPrefix(trimmed, "```"), Line: number}
		default:
			d.prose.WriteString(line)
			if m := heading.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
				d.anchor(m[1])
			}
		}
	}
	for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(d.prose.String(), "``"), -1) {
		d.Links = append(d.Links, m[1])
	}
	return d
}

// anchor adds the anchor of a heading: its text in lower case, with hyphens for blanks and without
// punctuation. A second heading with the same text gets a number.
func (d *Document) anchor(text string) {
	var b strings.Builder
	for _, r := range strings.ToLower(linkText.ReplaceAllString(text, "$1")) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	name := b.String()
	for n := 1; d.Anchors[name]; n++ {
		name = b.String() + "-" + strconv.Itoa(n)
	}
	d.Anchors[name] = true
}

// Commands returns the lines of a document that run the command pglock: indented ones, and those in
// blocks for a shell, with the lines that they continue on.
func (d *Document) Commands() (commands []string) {
	for line := range strings.Lines(d.prose.String()) {
		if strings.HasPrefix(line, "    pglock ") {
			commands = append(commands, strings.TrimSpace(line))
		}
	}
	for _, b := range d.Blocks {
		if b.Language != "sh" {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(b.Text, "\\\n", " ")) {
			if line = strings.TrimSpace(line); callsPglock.MatchString(line) {
				commands = append(commands, line)
			}
		}
	}
	return commands
}

// callsPglock matches a line of a shell with a subcommand of pglock where a command can stand.
var callsPglock = regexp.MustCompile(`(?:^|[;&|(] *|\bdo +|\w=\S* +)pglock +[a-z]`)
