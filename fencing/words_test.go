package fencing

import (
	"slices"
	"strings"
	"testing"
)

func TestFirstWords(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"":                                   "",
		" \t\r\n\f\v;; -- x\n /* x */":       "",
		"select 1":                           "SELECT",
		"Update t SET v = 1":                 "UPDATE",
		"((SELECT 1))":                       "SELECT",
		"-- commit\nSELECT 1":                "SELECT",
		"--":                                 "",
		"/* a /* b */ commit; */ INSERT":     "INSERT",
		"/* a; commit":                       "",
		"/*/ ; */ SELECT":                    "SELECT",
		"SELECT 1; COMMIT":                   "SELECT COMMIT",
		"SELECT 1;\n/* x */ ;end; DO $$;$$":  "SELECT END DO",
		"SELECT '; commit'":                  "SELECT",
		"SELECT 'it''s; commit'; do":         "SELECT DO",
		`SELECT '\'; commit; SELECT '`:       "SELECT COMMIT SELECT",
		`SELECT E'\'; commit; SELECT '; end`: "SELECT END",
		`SELECT e'\\'; end`:                  "SELECT END",
		`SELECT E'`:                          "SELECT",
		`SELECT xe'\'; end`:                  "SELECT END",
		`SELECT 1 AS "a; ""commit"; end`:     "SELECT END",
		"SELECT $$ ; commit ' $$; end":       "SELECT END",
		"SELECT $a1$ ; $$ commit; $a1$; end": "SELECT END",
		"SELECT $1; end":                     "SELECT END",
		"SELECT $1$; end $1$":                "SELECT END", // no quote: a tag does not begin with a digit
		"SELECT a$b$; end; SELECT $b$":       "SELECT END SELECT",
		"SELECT $é$; commit $é$":             "SELECT",
		"SELECT $":                           "SELECT",
		"SELECT $a":                          "SELECT",
		"SELECT 1/2; end":                    "SELECT END",
		"SELECT 1-2; end":                    "SELECT END",
		"begin_report":                       "BEGIN_REPORT",
		"end2":                               "END2",
		"é commit":                           "É",
		"'quoted'; end":                      "'QUOTED' END",
	} {
		if got := firstWords(sql); strings.Join(got, " ") != want {
			t.Errorf("%q begins with %q, want %q", sql, got, want)
		}
	}
}

// FuzzFirstWords: any text comes to an end, and what stands behind a statement is seen.
func FuzzFirstWords(f *testing.F) {
	for _, seed := range []string{"SELECT 1", "'", "$a$", "/*", "E'\\", "--", `"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if words := firstWords("SELECT 1;commit;" + text); len(words) < 2 || words[1] != "COMMIT" {
			t.Fatalf("%q: %q", text, words)
		}
		if quoted := "SELECT '" + strings.ReplaceAll(text, "'", "''") + "';commit"; !slices.Equal(firstWords(quoted), []string{"SELECT", "COMMIT"}) {
			t.Fatalf("%q: %q", quoted, firstWords(quoted))
		}
	})
}
