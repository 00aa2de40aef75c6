package readme_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// exclusionPage lists what decides who holds a lock, which this file calls the kernel.
const exclusionPage = "docs/explanation/what-decides-exclusion.md"

// maxKernel bounds the kernel's lines of code, without comments and blank lines. A higher bound
// makes the kernel harder to review.
const maxKernel = 1800

// sqlUnit is a piece of the product's SQL: a file with a statement, a string constant of a Go
// file, or a statement of a migration, which may create a function.
type sqlUnit struct {
	file string // from the root of the repository
	name string // of the statement or of what it creates; of a file its name
	text string // without comments
}

var (
	created   = regexp.MustCompile(`CREATE (?:OR REPLACE )?(?:UNLOGGED )?(?:TABLE|FUNCTION|VIEW|TYPE|SEQUENCE|DOMAIN) (\w+)`)
	sqlToken  = regexp.MustCompile(`(?s)--[^\n]*|'(?:[^']|'')*'|\$\w*\$|;`)
	lockTable = regexp.MustCompile(`\b(?:distributed_locks|lock_permits|lock_waiters|nested_waits|release_permits)\b`)
)

// statementsOf splits a migration. A DO block has the names of all that it creates.
func statementsOf(file, text string) (units []sqlUnit) {
	begin, dollar := 0, ""
	var bare strings.Builder // the statement without comments
	for at := 0; at < len(text); {
		m := sqlToken.FindStringIndex(text[at:])
		if m == nil {
			break
		}
		found := text[at+m[0] : at+m[1]]
		bare.WriteString(text[at : at+m[0]])
		at += m[1]
		switch {
		case strings.HasPrefix(found, "--"):
			continue
		case strings.HasPrefix(found, "$") && dollar == "":
			dollar = found
		case found == dollar:
			dollar = ""
		}
		bare.WriteString(found)
		if found != ";" || dollar != "" {
			continue
		}
		names := created.FindAllStringSubmatch(bare.String(), -1)
		if names == nil {
			names = [][]string{{"", ""}}
		}
		for _, name := range names {
			units = append(units, sqlUnit{file, name[1], bare.String()})
		}
		begin = at
		bare.Reset()
	}
	if rest := strings.TrimSpace(text[begin:]); rest != "" && !strings.HasPrefix(rest, "--") {
		units = append(units, sqlUnit{file, "", rest})
	}
	return units
}

// statementsIn returns the string constants of a Go file that name a table of locks, or the function
// that ends grants of any kind.
func statementsIn(t *testing.T, file string) (units []sqlUnit) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	key := ""
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if literal, ok := n.Key.(*ast.BasicLit); ok {
				key, _ = strconv.Unquote(literal.Value)
			}
		case *ast.BinaryExpr, *ast.BasicLit:
			if text := constant(n); lockTable.MatchString(text) {
				units = append(units, sqlUnit{file, key, text})
			}
			_, isLiteral := n.(*ast.BasicLit)
			return isLiteral
		}
		return true
	})
	return units
}

// constant returns the string literals of an expression, one after the other.
func constant(n ast.Node) string {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return constant(n.X) + constant(n.Y)
	case *ast.BasicLit:
		if n.Kind == token.STRING {
			text, _ := strconv.Unquote(n.Value)
			return text
		}
	}
	return ""
}

// productSQL returns the SQL about the tables of locks that users run: that of the client, of the
// migrations and of the command. pglocktest is left out, because a kit for tests changes grants as
// no program may.
func productSQL(t *testing.T) (units []sqlUnit) {
	t.Helper()
	product := func(path string) (string, bool) {
		file, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		file = filepath.ToSlash(file)
		top, _, _ := strings.Cut(file, "/")
		return file, slices.Contains([]string{"leasetable", "migrations", "pglock", "fencing"}, top) && !strings.Contains(file, "pglocktest/") &&
			!strings.Contains(file, "/testdata/") && !strings.HasSuffix(file, "_test.go")
	}
	walk(t, ".sql", func(p string) {
		file, ok := product(p)
		switch {
		case !ok, strings.HasSuffix(file, ".down.sql"):
		case strings.HasPrefix(file, "migrations/"):
			units = append(units, statementsOf(file, read(t, p))...)
		default:
			units = append(units, sqlUnit{file, path.Base(file), regexp.MustCompile(`--[^\n]*`).ReplaceAllString(read(t, p), "")})
		}
	})
	walk(t, ".go", func(p string) {
		if file, ok := product(p); ok {
			units = append(units, statementsIn(t, file)...)
		}
	})
	if len(units) < 150 {
		t.Fatalf("found %d pieces of SQL", len(units))
	}
	return units
}

var (
	writes  = regexp.MustCompile(`\b(?:(UPDATE)|INSERT INTO|DELETE FROM|MERGE INTO|TRUNCATE|COPY) (?:ONLY )?(?:[\w"<>]+\.)?(distributed_locks|lock_permits)\b`)
	decides = regexp.MustCompile(`\b(?:token|holder|expires_at|in_use|weight) =`)
	setsEnd = regexp.MustCompile(`\b(?:FROM|WHERE|RETURNING)\b|;|$`)
)

// decidesExclusion reports whether SQL inserts or deletes rows of distributed_locks or lock_permits,
// or changes their token, holder, end or number of permits. It sees what a statement does itself:
// for what it calls, see picksGrants.
func decidesExclusion(sql string) bool {
	for _, m := range writes.FindAllStringSubmatchIndex(sql, -1) {
		if m[2] < 0 {
			return true
		}
		rest := withoutParentheses(sql[m[5]:])
		if decides.MatchString(rest[:setsEnd.FindStringIndex(rest)[0]]) {
			return true
		}
	}
	return false
}

// endsGrants finds a call of a function that ends grants, with its first two arguments.
var endsGrants = regexp.MustCompile(`\b(?:release_permits|free_expired_permits|await_guards|keep_permits)\((\S+?)(?:, |\))(\S*)`)

// picksGrants reports whether SQL calls a function that ends grants with a name or a token that it
// has read, so that it decides which grant ends. One that passes its parameters on decides nothing.
func picksGrants(sql string) bool {
	for _, m := range endsGrants.FindAllStringSubmatch(sql, -1) {
		if !strings.HasPrefix(m[1], "$") && m[1] != "lock" && !strings.HasPrefix(m[1], "lock_name") {
			return true
		}
	}
	return false
}

// withoutParentheses leaves out what is in parentheses: what a SET reads, for instance.
func withoutParentheses(sql string) string {
	var b strings.Builder
	depth := 0
	for _, r := range sql {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case depth <= 0:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// kernelEntry is an entry of the page.
type kernelEntry struct {
	file  string // from the root of the repository
	name  string // of a function, a type, a table or a statement in the file; empty: all of it
	lines int    // of code
}

var (
	kernelRow  = regexp.MustCompile(`(?m)^\| \[` + "`([^`]+)`" + `\]\(\.\./\.\./([^)]+)\)([^|]*)\| ([^|]+) \| ([^|]*) \|$`)
	invariants = regexp.MustCompile(`^(?:–|I\d+(?:, I\d+)*)$`)
	codeSpans  = regexp.MustCompile("`([^`]+)`")
)

// kernel reads the page, whose rows have a link to the entry, the functions of a Go file, a
// sentence, and invariants.
func kernel(t *testing.T) (entries []kernelEntry) {
	t.Helper()
	page := read(t, filepath.Join(root, exclusionPage))
	if rows := strings.Count(page, "\n| ["); rows != len(kernelRow.FindAllString(page, -1)) {
		t.Errorf("%d of %d rows have the form of an entry", len(kernelRow.FindAllString(page, -1)), rows)
	}
	promises := read(t, filepath.Join(root, "docs/reference/promises.md"))
	units := productSQL(t)
	for _, m := range kernelRow.FindAllStringSubmatch(page, -1) {
		name, file := m[1], m[2]
		if !invariants.MatchString(strings.TrimSpace(m[5])) {
			t.Errorf("%s: %q names no invariants", name, m[5])
		}
		for _, i := range strings.Split(strings.TrimSpace(m[5]), ", ") {
			if i != "–" && !strings.Contains(promises, "- **"+i+" ") {
				t.Errorf("%s: there is no invariant %s", name, i)
			}
		}
		switch {
		case !strings.HasSuffix(file, ".go"), strings.HasSuffix(file, "statements.go"):
			at := slices.IndexFunc(units, func(u sqlUnit) bool { return u.file == file && u.name == name })
			if at < 0 {
				t.Errorf("%s has no %s", file, name)
				continue
			}
			entries = append(entries, kernelEntry{file, name, codeLines(units[at].text)})
		default:
			if name != file {
				t.Errorf("the row of %s leads to %s", name, file)
			}
			functions := codeSpans.FindAllStringSubmatch(m[3], -1)
			if functions == nil {
				t.Errorf("%s: the row names no function", file)
			}
			for _, f := range functions {
				entries = append(entries, kernelEntry{file, f[1], functionLines(t, file, f[1])})
			}
		}
	}
	return entries
}

// codeLines counts the lines of SQL without comments that are not blank.
func codeLines(text string) (n int) {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			n++
		}
	}
	return n
}

// functionLines counts the lines of a Go function without comments and blank lines. The name of a
// method may follow that of its type.
func functionLines(t *testing.T, file, name string) (n int) {
	t.Helper()
	source := []byte(read(t, filepath.Join(root, file)))
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || name != f.Name.Name && name != receiver(f)+"."+f.Name.Name {
			continue
		}
		found++
		text := source[set.Position(f.Pos()).Offset:set.Position(f.End()).Offset]
		for line := range bytes.Lines(text) {
			if line = bytes.TrimSpace(line); len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
				n++
			}
		}
	}
	if found != 1 {
		t.Errorf("%s has %d functions %s", file, found, name)
	}
	return n
}

// receiver returns the type of a method.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	return fmt.Sprint(of)
}

// unlisted returns what decides exclusion and is not among the entries.
func unlisted(units []sqlUnit, entries []kernelEntry) (missing []string) {
	for _, u := range units {
		listed := slices.ContainsFunc(entries, func(e kernelEntry) bool { return e.file == u.file && e.name == u.name })
		if (decidesExclusion(u.text) || picksGrants(u.text)) && !listed {
			missing = append(missing, u.file+": "+u.name)
		}
	}
	return missing
}

// TestWhatDecidesExclusionIsListed checks that the page lists all SQL that decides who holds a
// lock, and nothing that does not exist. It prints the size of what is listed, and bounds it.
func TestWhatDecidesExclusionIsListed(t *testing.T) {
	t.Parallel()
	units, entries := productSQL(t), kernel(t)
	for _, missing := range unlisted(units, entries) {
		t.Errorf("%s does not list %s, which makes, changes or ends a grant", exclusionPage, missing)
	}
	seen, sql, inGo := map[string]bool{}, 0, 0
	for _, e := range entries {
		if seen[e.file+": "+e.name] {
			t.Errorf("%s is listed twice", e.name)
		}
		seen[e.file+": "+e.name] = true
		if strings.HasSuffix(e.file, ".go") && !strings.HasSuffix(e.file, "statements.go") {
			inGo += e.lines
		} else {
			sql += e.lines
		}
	}
	t.Logf("the kernel has %d lines of SQL and %d of Go in %d entries", sql, inGo, len(seen))
	if len(seen) < 40 || sql+inGo > maxKernel {
		t.Errorf("the kernel has %d lines in %d entries: at most %d lines", sql+inGo, len(seen), maxKernel)
	}
}

// TestMissingEntriesAreFound is the control of the test above: it finds each entry that is
// removed, and statements that are not listed.
func TestMissingEntriesAreFound(t *testing.T) {
	t.Parallel()
	units, entries := productSQL(t), kernel(t)
	found := 0
	for i, e := range entries {
		missing := unlisted(units, slices.Delete(slices.Clone(entries), i, i+1))
		if slices.ContainsFunc(units, func(u sqlUnit) bool { return u.file == e.file && u.name == e.name && decidesExclusion(u.text) }) {
			found++
			if !slices.Contains(missing, e.file+": "+e.name) {
				t.Errorf("without %s nothing is missing", e.name)
			}
		}
	}
	if found < 15 {
		t.Errorf("%d entries decide exclusion", found)
	}
	for sql, want := range map[string]bool{
		"UPDATE pglock.distributed_locks AS l SET version = 1, holder = NULL WHERE l.name = $1":                            true,
		"UPDATE distributed_locks SET expires_at = (SELECT max(w.expires_at) FROM lock_waiters AS w), version = version+1": true,
		"UPDATE \"<here>\".distributed_locks AS l SET labels = '{}' FROM x AS y WHERE y.holder = l.holder AND y.token = 1": false,
		"UPDATE \"<here>\".distributed_locks AS l SET version = (SELECT 1 FROM t WHERE t.token = 1)":                       false,
		"WITH a AS (INSERT INTO \"<here>\".lock_permits (name) VALUES ('a')) SELECT 1":                                     true,
		"DELETE FROM pglock.distributed_locks AS l":                                                                        true,
		"UPDATE pglock.lock_permits AS p SET weight = 2 WHERE p.name = $1":                                                 true,
		"UPDATE pglock.lock_permits AS p SET release_request = $1 WHERE p.token = 1":                                       false,
		"SELECT pglock.release_permits(g.name, g.token, true) FROM pglock.distributed_locks AS g":                          true,
		"SELECT pglock.await_guards($1::text, $2::bigint, $3::boolean)":                                                    false,
		"UPDATE pglock.lock_waiters AS w SET expires_at = clock_timestamp()":                                               false,
		"SELECT FROM pglock.distributed_locks AS l WHERE l.token = 1 FOR UPDATE":                                           false,
	} {
		if got := unlisted([]sqlUnit{{"leasetable/sql/new.sql", "new.sql", sql}}, entries) != nil; got != want {
			t.Errorf("%s: decides exclusion: %v", sql, got)
		}
	}
}

// TestOneTextForEachRule checks the SQL of the product for the rules that many statements repeat.
func TestOneTextForEachRule(t *testing.T) {
	t.Parallel()
	units := productSQL(t)
	used := map[string]int{}
	for _, u := range units {
		for rule, found := range brokenRules(u.name, u.text, used) {
			t.Errorf("%s: %s: %q: %s", u.file, u.name, found, rule)
		}
	}
	if used["ends"] < 60 || used["tickets"] < 8 || used["versions"] != 1 {
		t.Errorf("found %v", used)
	}
	for sql, broken := range map[string]bool{
		"WHERE l.expires_at > clock_timestamp()":                                             false,
		"WHERE l.expires_at <= pg_catalog.clock_timestamp() - interval '1 s'":                false,
		"WHERE l.expires_at >= clock_timestamp()":                                            true,
		"WHERE l.expires_at OPERATOR(pg_catalog.<) clock_timestamp()":                        true,
		"WHERE l.expires_at > now()":                                                         true,
		"WHERE clock_timestamp() < l.expires_at":                                             true,
		"WHERE l.expires_at BETWEEN a AND b":                                                 true,
		"WHERE s.expires_at > s.read_at":                                                     true,
		"SELECT clock_timestamp() AS read_at) AS s WHERE s.expires_at > s.read_at":           false,
		"SELECT now() AS read_at":                                                            true,
		"WHERE w.ticket > l.ticket":                                                          true,
		"WHERE w.state = 'queued' AND w.ticket > coalesce(l.ticket, 0)":                      false,
		"WHERE w.state = 'overflow' OR w.ticket > coalesce(l.ticket, 0)":                     true,
		"SET version = l.version % 9223372036854775807 + 1":                                  true,
		"SET version = l.version + 1":                                                        true,
		"CASE WHEN $6::bigint < 9223372036854775807 THEN 1 END AND w.ticket < $6 ORDER BY 1": false,
	} {
		if got := len(brokenRules("x", sql, used)) > 0; got != broken {
			t.Errorf("%s: %v", sql, brokenRules("x", sql, used))
		}
	}
}

var (
	endCompared = regexp.MustCompile(`\bexpires_at\s*(?:OPERATOR\(pg_catalog\.)?(<=|>=|<>|<|>|BETWEEN)\)?\s*(\S+)`)
	serverClock = regexp.MustCompile(`^(?:pg_catalog\.)?clock_timestamp\(\)`)
	readAt      = regexp.MustCompile(`^\w\.read_at\b`)
	otherClock  = regexp.MustCompile(`(?i)\bnow\(\)|\b(?:current|local)_?time(?:stamp)?\b|\b(?:statement|transaction)_timestamp\b|` +
		`clock_timestamp\(\)\s*(?:OPERATOR\(pg_catalog\.)?[<>]`)
	ticketValid = regexp.MustCompile(`(\w+\.state = 'queued' AND )?\b\w+\.ticket (?:>|<=) (?:coalesce\()?(?:\(SELECT )?(?:\w+\.ticket|used_up)\b`)
	wrapsAround = regexp.MustCompile(`(?:%|OPERATOR\(pg_catalog\.%\))\s*9223372036854775807|\bversion\s*(?:\+|OPERATOR\(pg_catalog\.\+\))\s*1\b`)
)

// endsOfStatements are the files that follow another one, which has "clock_timestamp() AS
// read_at".
var endsOfStatements = []string{"matching.sql", "row.sql"}

// ownTicket is a comparison in refresh_tickets.sql of the client's own ticket, in whatever state
// it is.
const ownTicket = "m.ticket > coalesce(l.ticket"

// brokenRules returns the texts that break a rule, by the rule, and counts those that keep one.
//
//   - A grant or a ticket lives while expires_at > clock_timestamp(), written in this order.
//   - A ticket is valid while it is queued and above that of the name's row. queue() says so,
//     and in statements that need more than that, the state stands beside the comparison.
//   - 1 follows the largest version: next_version().
func brokenRules(name, text string, used map[string]int) map[string]string {
	broken := map[string]string{}
	for _, m := range endCompared.FindAllStringSubmatch(text, -1) {
		used["ends"]++
		sameStatement := readAt.MatchString(m[2]) && (strings.Contains(text, "clock_timestamp() AS read_at") || slices.Contains(endsOfStatements, name))
		if m[1] != ">" && m[1] != "<=" || !serverClock.MatchString(m[2]) && !sameStatement {
			broken["a grant lives while expires_at > clock_timestamp()"] = m[0]
		}
	}
	if m := otherClock.FindString(text); m != "" {
		broken["only clock_timestamp(), to the right of a comparison"] = m
	}
	for _, m := range ticketValid.FindAllStringSubmatch(text, -1) {
		used["tickets"]++
		if m[1] == "" && !strings.HasPrefix(m[0], ownTicket) {
			broken["a valid ticket is read through queue(), or has state = 'queued' before the comparison"] = m[0]
		}
	}
	if m := wrapsAround.FindString(text); m != "" {
		used["versions"]++
		if name != "next_version" {
			broken["the next version is next_version()"] = m
		}
	}
	return broken
}
