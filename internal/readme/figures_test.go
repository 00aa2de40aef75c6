package readme_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
)

// measured has the sentences of the documents with figures, by page. What is in braces stands for a
// figure: {row|subject|figure} is one of testdata/bench/results.json, and two of them with a slash
// between them are their ratio. Other names are those of facts.
var measured = map[string][]string{
	"README.md": {
		"| no lock | {demo 1} | | a lock | {demo 2} | | a lock and a guard | {demo 3} |",
		"costs](docs/reference/benchmarks.md) {B1|pglock|pair p50} on a local server, and 256 callers make {B2|pglock|pairs} a second on two cores " +
			"(redislock {B2|redislock|pairs}, auto-pipelined {B2|redislock, auto-pipelined|pairs})",
		"free again {DefaultTTL} (the TTL) after",
	},
	"docs/reference/benchmarks.md": {
		"one caller, distinct names | {B1|pglock|pair p50} | one durable UPDATE {B1|UPDATE|update p50}, two of them, the second not awaited, " +
			"{B1|two UPDATEs, second not awaited|pair p50}.",
		"pairs a second | {B2|pglock|pairs} | the same batches as bare UPDATEs of a table with two columns {B2|bare UPDATEs, batched|pairs}; " +
			"a statement for each lock {B2|one statement per lock|pairs}; Redis (redislock) {B2|redislock|pairs}, and " +
			"{B2|redislock, auto-pipelined|pairs} with the auto-pipelining of its client; etcd {B2|etcd mutex|pairs}, and " +
			"{B2|etcd keys, batched|pairs} in batched transactions |",
		"used once](../../testdata/bench/b17.svg), 256 callers, pairs a second | {B17|new names, 256 callers|pairs} | known names in the same run " +
			"{B17|known names, 256 callers|pairs}; a row for each lock, an INSERT and a DELETE, a statement each, {B17|INSERT and DELETE, a statement each|pairs}; " +
			"Redis (redislock) {B17|redislock|pairs}; etcd {B17|etcd mutex|pairs} |",
		"pruned after a minute, for ten minutes | p50 {B19|pglock|pair p50}, p99 {B19|pglock|pair p99}; {B19|pglock|WAL of a pair} of WAL a pair |",
		"while a client uses it | {B18|the table has grown|pairs / B18|it was as large|pairs} times the pairs of a table that was as large |",
		"16 processes, p50 | {B3|pglock, 16 processes|gap p50} | etcd {B3|etcd mutex, 16 processes|gap p50}; Redis (redislock) " +
			"{B3|redislock, 16 processes|gap p50}, and a blocked advisory lock {B3|blocked pg_advisory_lock, 16 processes|gap p50} |",
		"1,000 waiters, {B10|pglock|connections} connections, p50 | {B10|pglock|gap p50} |",
		"of a reader's | {B13|semaphore|pair p50 / B13|lease|pair p50} times the time of a lock; of a writer's, " +
			"{B13|writer|pair p50 / B13|lease|pair p50} times; of eight names at once, {B13|eight names|pair p50 / B13|lease|pair p50} times |",
		"one candidate | {E1|election|pair p50 / E1|acquire+release|pair p50} times the time of a lock |",
		"a second | {B4|pglock, 4 connections|tries}, no WAL | upsert {B4|naive upsert, 4 connections|tries} |",
		"TTL {DefaultTTL} | {B5|pglock|statements} statements a second, {B5|pglock|processor} of a core |",
		"a million names](../../testdata/bench/b6.svg) | {B6|known name of a million|acquire p50 / B6|known name of a thousand|acquire p50} times the time of a thousand names |",
		"guarded UPDATE](../../testdata/bench/b7.svg) | {B7|Batch|write p50 / B7|UPDATE|write p50} times the time of an unguarded one |",
		"with bind and commit | {B7|protected UPDATE of 1 rows, again|write p50 / B7|UPDATE of 1 rows|write p50} times the time without protection; " +
			"for 1,000 rows {B7|protected UPDATE of 1000 rows, again|write p50 / B7|UPDATE of 1000 rows|write p50} times, and " +
			"{B7|protected UPDATE of 1000 rows, stamped|write p50 / B7|UPDATE of 1000 rows|write p50} times where each gets a new token |",
		"over 30 s, the slowest to the fastest | {F1|16 processes|fairness}, {F1|200 goroutines of one process|fairness} |",
	},
	"docs/reference/promises.md": {
		"| {scripts} scripts give the expected outcome of each step | {breaks} breaks of the SQL, each noticed;",
	},
	"docs/reference/protocol.md": {
		"has not refreshed its ticket for {KeepTicket}, and the name has been free for {HeadGrace}. Its ticket is invalid {TicketTTL} after the last refresh.",
		"After {DeadlockAfter} the client writes a row",
		"waits for less than {DeadlockAfter}, write no such row.",
		"then counts for up to {NestedWaitTTL} more.",
		"as long as its ticket: for {KeepTicket} if it waits for several names",
		"may take {ConnectBound} for each host, or the connect_timeout of the connection string. Hooks and the first statements of a connection have {InitBound}.",
		"twice the time of the longest so far, up to {MaxConnectBound}, and starts",
		"stays in flight for up to {StatementBound}.",
		"Acquire keeps trying for {OutagePatience}.",
	},
	"docs/reference/sql-protocol.md": {
		"a tenth of the TTL, but at most {MaxMargin}.",
		"forgets a wait {NestedWaitTTL} after the last call.",
	},
	"docs/reference/options.md": {
		"| `WithRetention` | {DefaultRetention} |",
		"| `WithTTL` | {DefaultTTL} |",
		"TTL/10, at most {MaxMargin} |",
		"`schedule.WithTTL` is {DefaultTTL} by default",
	},
	"docs/reference/limits.md": {
		"a resource of `advance` | 1 to {name} bytes of UTF-8 without NUL,",
		"the same, less the {prefix} bytes of its mark's prefix |",
		"| {schema} bytes, not beginning",
		"acquires together | {names} |",
		"permits of a semaphore | {permits} |",
		"| the TTL | {MinTTL} to 10 years;",
		"as JSON | {result} MiB |",
		"idle for {DefaultRetention}, and",
	},
	"docs/reference/schema-and-rights.md": {
		"an idle one is pruned after {DefaultRetention}, except of a job with a next tick |",
	},
	"docs/reference/cli.md": {
		"if this host dies; {DefaultTTL} by default |",
	},
	"docs/explanation/the-queue.md": {
		"refreshes the ticket every {RefreshEvery}, and the same statement looks at the lock, so the loss of a notification costs {RefreshEvery} at most.",
		"A ticket is valid for {TicketTTL}.",
		"that waits until its row expires after {TicketTTL}.",
		"does not respond within {HeadGrace} of the release, the queue skips it, and its ticket becomes invalid. " +
			"A release therefore also notifies the one behind it, which looks after these {HeadGrace},",
		"looks every 5 to {RefreshEvery} with the statement that refreshes tickets, the first ones more often ({LookStep} for each waiter before it)",
		"does so for {ListenerIdle} after it has waited for more than {ListenAfter}, and counts as listening for the first {counts as listening} of these",
	},
	"docs/guides/coming-from.md": {
		"`WithTTL`, {DefaultTTL} |",
	},
	"docs/guides/distributed-lock-go-postgresql.md": {
		"**The TTL.** {DefaultTTL} by default. Others wait that long after a holder dies, and a holder survives each outage of the database of up to {outage}.",
	},
	"docs/guides/leader-election.md": {
		"the TTL, {DefaultTTL} by default |",
	},
	"docs/guides/listen-notify.md": {
		"| no other session | {B14|none|gap p50} |",
		"that listen | {B14|100 sessions that listen to others|gap p50 / B14|none|gap p50} times that |",
		"| 500 of them | {B14|500 sessions that listen to others|gap p50 / B14|none|gap p50} times that |",
		"| 1,000 of them | {B14|1000 sessions that listen to others|gap p50 / B14|none|gap p50} times that |",
		"waited once | {B14|500 clients that waited once|gap p50 / B14|none|gap p50} times that |",
		"wait for another lock | {B14|500 clients that wait for another name|gap p50 / B14|none|gap p50} times that |",
		"and for {ListenerIdle} after that. It begins after {ListenAfter} of waiting.",
		"look every 5 to {RefreshEvery}, as in",
		"Beside {B16|beside hand-offs|passed on} hand-offs a second among four processes, eight goroutines that update rows of their own had " +
			"{B16|beside hand-offs|commits} commits a second, {B16|beside commits|commits} beside plain commits at the same pace, and " +
			"{B16|alone|commits} without either (row B16;",
		"the default TTL of {DefaultTTL},",
		"| 1 | {B15|1 clients|statements} | {B15|1 clients|connections} | | 10 | {B15|10 clients|statements} | {B15|10 clients|connections} | " +
			"| 100 | {B15|100 clients|statements} | {B15|100 clients|connections} | | 500 | {B15|500 clients|statements} | {B15|500 clients|connections} |",
		"if the first takes longer than {DialPatience}. The spare ones close after {SpareIdle}.",
		"a release is noticed within {poll} instead of a millisecond.",
		"misses a notification looks within {RefreshEvery}.",
	},
	"docs/guides/operating.md": {
		"names of one retention, {B19|pglock|size of a name} for each:",
		"writes {B19|pglock|WAL of a pair} of write-ahead log.",
		"were {B19|pglock|size in the last tenth / B19|pglock|size before} times as large after ten minutes as after three, and a pair took " +
			"{B19|pglock|pair p50}, one in a hundred more than {B19|pglock|pair p99} (row B19",
		"and then deletes {B19|pglock|rows that a prune deletes} rows a second.",
		"within a third of the TTL ({renew} by default)",
		"Within {ListenerIdle} after that, those that are not needed are closed.",
		"10,000 leases with the default TTL cost {B5|pglock|statements} statements a second and {B5|pglock|processor} of a core",
		"works on until its deadline, {outage} after the beginning",
		"keeps trying for {OutagePatience}, and then fails",
		"which is {outage} with the defaults, and one of up to {trusted} if it was renewed just before.",
	},
	"docs/monitoring/README.md": {
		"17 to {trusted} later by default,",
	},
}

// stated has the other numbers with a unit, by page: choices of an example, limits that a test of their
// package holds, and facts about other software, whose source the page names.
var stated = map[string][]string{
	"CONTRIBUTING.md":                             {"at most 1,000 words"},
	"docs/explanation/comparison.md":              {"TERM to its child 90 s after", "stopped for half an hour"},
	"docs/explanation/tokens-through-failover.md": {"fewer than 10,000 grants and tickets a second"},
	"docs/guides/coming-from.md":                  {"`LockDelay`, 15 s by default", "`WithLeaseDuration`, 20 s"},
	"docs/guides/idempotency-keys.md":             {"kept for 24 h"},
	"docs/guides/leader-election.md":              {"an outage of half a minute"},
	"docs/guides/operating.md":                    {"500 to 1,000 connections", "With 2,000 new names", `as in "6s, not renewed for 24s"`},
	"docs/reference/benchmarks.md":                {"10,000 leases", "[2,000 new names a second]"},
	"docs/reference/limits.md":                    {"| 512 bytes |", "10,000 of them", "below 1 s for tests only", "1 GB in all"},
	"docs/reference/promises.md":                  {"100,000 waiters", "10,000 processes", "1,000 clients"},
	"docs/reference/protocol.md":                  {"keeps 63 bytes of it", "up to 30 % of its TTL"},
	"docs/reference/schema-and-rights.md":         {"1 GB at most", "less than 1 MB"},
	"docs/reference/sql-protocol.md":              {"Up to 58 bytes"},
	"docs/tutorials/first-lock.md":                {"The TTL is 5 s", "at most 5 s, reads", "again 5 s after"},
	"docs/tutorials/nightly-job.md":               {"expires 5 s after"},
}

// number matches a number that looks like a figure: one with a unit, or of four digits or more.
var number = regexp.MustCompile(`(?i)\d[\d,.]* ?(?:(?:ms|µs|s|min|h|kB|MB|GB|times|bytes|minutes?|seconds?|hours?|connections|commits|pairs)\b|%)|` +
	`\d{1,3}(?:,\d{3})+|\b(?:half|third|quarter) (?:of )?an? (?:second|minute|hour)\b`)

// facts are the figures by name: those of the benchmarks and of the demo, which their runs wrote, the
// constants of package timing, and what can be counted in the tree.
func facts(t *testing.T) map[string]figure {
	t.Helper()
	found := map[string]figure{}
	var results struct {
		Rows []struct {
			Row     string
			Figures []struct {
				Subject, Figure, Unit string
				Median                float64
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, root+"/testdata/bench/results.json")), &results); err != nil {
		t.Fatal(err)
	}
	for _, row := range results.Rows {
		for _, f := range row.Figures {
			found[row.Row+"|"+f.Subject+"|"+f.Figure] = figure{f.Median, f.Unit}
		}
	}
	for _, act := range regexp.MustCompile(`(?m)^  (\d)  [a-z ]+ \d+ +\d+ +(\d+) `).FindAllStringSubmatch(read(t, root+"/testdata/demo.txt"), -1) {
		lost, _ := strconv.ParseFloat(act[2], 64)
		found["demo "+act[1]] = figure{lost, "of"}
	}
	scripts, _ := filepath.Glob(root + "/testdata/schedules/*.txt")
	breaks := 0
	for _, path := range scripts {
		breaks += strings.Count("\n"+read(t, path), "\nbreak ")
	}
	for name, n := range map[string]int{
		"scripts": len(scripts), "breaks": breaks, "name": errs.MaxName, "prefix": len(schema.LastTick), "schema": schema.MaxName,
		"names": pglock.MaxNames, "permits": pglock.MaxPermits, "result": once.MaxResult >> 20,
	} {
		found[name] = figure{float64(n), "of"}
	}
	for name, d := range map[string]time.Duration{
		"MinTTL":     timing.MinTTL,
		"DefaultTTL": timing.DefaultTTL, "MaxMargin": timing.MaxMargin, "DefaultRetention": timing.DefaultRetention,
		"RefreshEvery": timing.RefreshEvery, "TicketTTL": timing.TicketTTL, "KeepTicket": timing.KeepTicket, "LookStep": timing.LookStep,
		"HeadGrace": timing.HeadGrace, "DeadlockAfter": timing.DeadlockAfter, "NestedWaitTTL": timing.NestedWaitTTL,
		"CancelGrace": timing.CancelGrace, "ConnectBound": timing.ConnectBound, "MaxConnectBound": timing.MaxConnectBound, "InitBound": timing.InitBound,
		"StatementBound": timing.StatementBound, "OutagePatience": timing.OutagePatience, "DialPatience": timing.DialPatience,
		"SpareIdle": timing.SpareIdle, "ListenerIdle": timing.ListenerIdle, "ListenAfter": timing.ListenAfter,
		"counts as listening": timing.ListenerIdle / 2,
		"poll":                timing.MaxPause * 3 / 2, // with its jitter
		"renew":               timing.DefaultTTL / 3,
		"trusted":             timing.DefaultTTL - timing.DefaultTTL/10,
		"outage":              timing.DefaultTTL - timing.DefaultTTL/10 - timing.DefaultTTL/3,
	} {
		found[name] = figure{float64(d.Microseconds()), "exactly"}
	}
	return found
}

type figure struct {
	value float64
	unit  string
}

// String formats a measured figure with two significant digits, and a counted or chosen one exactly.
func (f figure) String() string {
	two := func(v float64) string {
		decimals := func() int { return 1 - int(math.Floor(math.Log10(v))) }
		scale := math.Pow10(decimals())
		v = math.Round(v*scale) / scale
		return strconv.FormatFloat(v, 'f', max(0, decimals()), 64)
	}
	switch f.unit {
	case "us":
		return two(f.value/1000) + " ms"
	case "1/s":
		return grouped(two(f.value))
	case "bytes":
		if f.value >= 1e6 {
			return two(f.value/1e6) + " MB"
		}
		return two(f.value) + " B"
	case "%":
		return two(f.value) + " %"
	case "exactly":
		switch d := time.Duration(f.value) * time.Microsecond; {
		case d < time.Second:
			return fmt.Sprint(d.Milliseconds(), " ms")
		case d < time.Hour:
			return fmt.Sprint(d.Seconds(), " s")
		default:
			return fmt.Sprint(d.Hours(), " h")
		}
	case "of":
		if f.value == math.Trunc(f.value) {
			return grouped(strconv.FormatFloat(f.value, 'f', -1, 64))
		}
	}
	return two(f.value)
}

// grouped puts commas into a number without decimals.
func grouped(text string) string {
	for at := len(text) - 3; at > 0 && !strings.Contains(text, "."); at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// folded returns the text of a document without its code, in one line.
func folded(text string) string {
	text = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
	text = regexp.MustCompile(`(?m)^ {4}.*$`).ReplaceAllString(text, "")
	return strings.Join(strings.Fields(text), " ")
}

// rewrite puts the figures of runs into the sentences of a page.
func rewrite(t *testing.T, path string, sentences []string, figureOf func(name string) string) {
	t.Helper()
	text := read(t, path)
	names := regexp.MustCompile(`\{[^}]*\}`)
	for _, sentence := range sentences {
		pattern := regexp.QuoteMeta(names.ReplaceAllString(sentence, "\x00"))
		pattern = strings.ReplaceAll(strings.Join(strings.Fields(pattern), `\s+`), "\x00", `(\d[\d.,]*(?:\s(?:ms|s|h|MB|B|%))?)`)
		at := regexp.MustCompile(pattern).FindStringSubmatchIndex(text)
		if at == nil {
			continue // the test says so
		}
		for i, name := range slices.Backward(names.FindAllString(sentence, -1)) {
			text = text[:at[2*i+2]] + figureOf(name) + text[at[2*i+3]:]
		}
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestFiguresAreMeasured compares the figures of the documents with those that a run wrote, with the
// constants of the protocol, and with what can be counted. A number that is none of these is a
// mistake: it was written by hand.
func TestFiguresAreMeasured(t *testing.T) {
	t.Parallel()
	all := facts(t)
	braces := regexp.MustCompile(`\{([^}]*)\}`)
	used := 0
	render := func(page, sentence string) string {
		return braces.ReplaceAllStringFunc(sentence, func(name string) string {
			name, base, isRatio := strings.Cut(strings.Trim(name, "{}"), " / ")
			f, found := all[name]
			if isRatio {
				f = figure{f.value / all[base].value, "x"}
			}
			if !found || math.IsInf(f.value, 0) {
				t.Errorf("%s: no run wrote %q or %q", page, name, base)
			}
			used++
			return f.String()
		})
	}
	for page := range documents(t) {
		if page == "docs/reference/evidence.md" { // which a program writes: see its test
			continue
		}
		if *update {
			rewrite(t, filepath.Join(root, page), measured[page], func(name string) string { return render(page, name) })
		}
		text := folded(read(t, filepath.Join(root, page)))
		for _, sentence := range measured[page] {
			want := render(page, sentence)
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q: correct the figure, or the sentence in this test", page, want)
			}
			text = strings.ReplaceAll(text, want, "…")
		}
		for _, words := range stated[page] {
			if !strings.Contains(text, words) {
				t.Errorf("%s does not say %q any more", page, words)
			}
			text = strings.ReplaceAll(text, words, "…")
		}
		text = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)").ReplaceAllString(text, "…")
		for _, at := range number.FindAllStringIndex(text, -1) {
			t.Errorf("%s has a figure that no run wrote: …%s…", page, text[max(0, at[0]-40):min(len(text), at[1]+40)])
		}
	}
	if used < 80 {
		t.Errorf("%d figures", used)
	}
	pages := documents(t)
	for _, page := range slices.Concat(keys(measured), keys(stated)) {
		if pages[page] == nil {
			t.Errorf("there is no page %s", page)
		}
	}
}

func keys(pages map[string][]string) (names []string) {
	for name := range pages {
		names = append(names, name)
	}
	return names
}
