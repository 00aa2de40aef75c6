package backend_test

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/leasetable"
)

// script is a case of the suite: see testdata/README.md.
type script struct {
	title string
	steps []*step
}

// step is one call, such as "a acquire sem/3*2 ttl 90s = granted for 90s".
type step struct {
	line, actor, verb string
	batch             [][]slot // of each request: what it wants together
	options           map[string]string
	want              string
	asks              bool // there is a want
}

// slot is a name with the permits that a request wants of it.
type slot struct {
	name string
	leasetable.Permits
}

var (
	slotText = regexp.MustCompile(`^([^/]+)(?:/(\d+)(?:\*(\d+))?)?$`)
	flags    = []string{"again", "barge", "new", "ticket", "polls", "late"} // options without a value
	kinds    = strings.NewReplacer("/r", fmt.Sprint("/", leasetable.ReadersWriter), "/w", fmt.Sprint("/", leasetable.ReadersWriter, "*", leasetable.ReadersWriter))
)

func parseStep(line string) (*step, error) {
	s := &step{line: line, options: map[string]string{}}
	var call string
	call, s.want, s.asks = strings.Cut(line, " = ")
	words := strings.Fields(call)
	if len(words) < 2 || verbs[words[1]].run == nil {
		return nil, fmt.Errorf("no call: %q", line)
	}
	s.actor, s.verb, words = words[0], words[1], words[2:]
	isNumber := func(text string) bool { return text[0] >= '0' && text[0] <= '9' || text[0] == '-' }
	if len(words) > 0 && !isNumber(words[0]) {
		for request := range strings.SplitSeq(words[0], ",") {
			var slots []slot
			for text := range strings.SplitSeq(request, "+") {
				m := slotText.FindStringSubmatch(kinds.Replace(text))
				if m == nil {
					return nil, fmt.Errorf("no name: %q", text)
				}
				at := slot{name: m[1]}
				if m[2] != "" {
					at.Capacity, _ = strconv.Atoi(m[2])
					at.Weight, _ = strconv.Atoi(cmp.Or(m[3], "1"))
				}
				slots = append(slots, at)
			}
			slices.SortFunc(slots, func(a, b slot) int { return cmp.Compare(a.name, b.name) })
			s.batch = append(s.batch, slots)
		}
		words = words[1:]
	}
	for len(words) > 0 {
		switch {
		case slices.Contains(flags, words[0]):
			s.options[words[0]], words = "yes", words[1:]
		case isNumber(words[0]):
			s.options["n"], words = words[0], words[1:]
		case len(words) == 1:
			return nil, fmt.Errorf("no value: %q", line)
		default:
			s.options[words[0]], words = words[1], words[2:]
		}
	}
	return s, nil
}

// readScripts returns the cases of each file of testdata.
func readScripts(t *testing.T) map[string][]script {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	locktest.OK(t, err)
	all := map[string][]script{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		locktest.OK(t, err)
		group := strings.TrimSuffix(filepath.Base(file), ".txt")
		for paragraph := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
			lines := strings.Split(paragraph, "\n")
			c := script{title: strings.TrimPrefix(lines[0], "# ")}
			for _, line := range lines[1:] {
				s, err := parseStep(line)
				if err != nil || c.title == lines[0] {
					t.Fatalf("%s: %s: %v", file, lines[0], err)
				}
				c.steps = append(c.steps, s)
			}
			all[group] = append(all[group], c)
		}
	}
	return all
}

// slots returns what the request of a step wants, the first one of a batch.
func (s *step) slots() []slot {
	if len(s.batch) == 0 {
		return nil
	}
	return s.batch[0]
}

func (s *step) names() (names []string) {
	for _, at := range s.slots() {
		names = append(names, at.name)
	}
	return names
}

func (s *step) name() string {
	if len(s.batch) == 0 {
		return ""
	}
	return s.batch[0][0].name
}

func (s *step) together() bool { return len(s.slots()) > 1 }

// permits reports whether the step is about a name that has permits.
func (s *step) permits() bool {
	return slices.ContainsFunc(s.slots(), func(at slot) bool { return at.Any() })
}

// duration returns the value of an option.
func (s *step) duration(option string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(s.options[option]); err == nil {
		return d
	}
	return otherwise
}

func (s *step) number(option string, otherwise int) int {
	if n, err := strconv.Atoi(s.options[option]); err == nil {
		return n
	}
	return otherwise
}

// operation is what the step needs of a driver: a method of backend.Table, and perhaps how it is
// called.
func (s *step) operation() string {
	op := verbs[s.verb].method
	has := func(option string) bool { return s.options[option] != "" }
	switch {
	case op == "AcquireFull" && (s.together() || s.permits()):
		op = "AcquireSlots"
	case op == "Release" && has("minhold"):
		op += ", with a minimum hold"
	case op == "Release" && (s.together() || s.permits()):
		op = "ReleasePermits"
	case op == "Join" && has("polls"):
		op += ", without a listener"
	case op == "Join" && has("again"):
		op += ", with a ticket"
	case op == "Join" && has("waited"):
		op += ", after some time"
	case op == "RefreshTickets" && has("late"):
		op += ", after its end"
	}
	return op + word(s.together(), ", of several names", "") + word(len(s.batch) > 1, ", of several requests", "")
}

// word returns one of two texts.
func word(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// key is that of what an actor has of the names of a request.
func key(actor string, slots []slot) string {
	for _, at := range slots {
		actor += " " + at.name
	}
	return actor
}

func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	text := hex.EncodeToString(id[:])
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}
