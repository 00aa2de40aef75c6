package pgtest

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
)

// oddSettings change how text is read and printed, how functions are compiled, and how transactions
// run. The database of OddDatabase has them for every role, also for the one that migrates.
var oddSettings = map[string]string{
	"TimeZone":                      "'America/St_Johns'",
	"DateStyle":                     "German",
	"IntervalStyle":                 "'iso_8601'",
	"bytea_output":                  "'escape'",
	"extra_float_digits":            "0",
	"default_text_search_config":    "'pg_catalog.turkish'",
	"standard_conforming_strings":   "off",
	"array_nulls":                   "off",
	"transform_null_equals":         "on",
	"quote_all_identifiers":         "on",
	"default_transaction_isolation": "'serializable'",
	"synchronous_commit":            "off",
	"plan_cache_mode":               "'force_generic_plan'",
	"plpgsql.extra_errors":          "'all'",
	"plpgsql.print_strict_params":   "on",
	"xmloption":                     "'document'",
	"row_security":                  "off",
}

// Version returns the major version of the server.
func Version(tb testing.TB) (major int) {
	tb.Helper()
	if err := Pool(tb).QueryRow(tb.Context(), "SELECT current_setting('server_version_num')::int / 10000").Scan(&major); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return major
}

// EscapesAreOld reports whether a backslash may quote in a literal without an E: PostgreSQL 19 has no such
// mode any more, and no warning about it.
func EscapesAreOld(tb testing.TB) bool {
	tb.Helper()
	return Version(tb) < 19
}

// OddDatabase creates a database with the rules of Turkish for letters, where the server knows them,
// and with settings that few others have. The server's messages are not in English if it has a
// locale for that. It returns the database's URL. Cleanup drops it.
func OddDatabase(tb testing.TB) string {
	tb.Helper()
	icu := Version(tb) >= 15 // a database's collation can be one of ICU
	options := "ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
	if icu {
		options += " LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'"
	}
	var settings []string
	for setting, to := range oddSettings {
		if setting == "standard_conforming_strings" && !EscapesAreOld(tb) {
			continue
		}
		settings = append(settings, setting+" = "+to)
	}
	name := "odd_" + strings.ToLower(rand.Text()[:16])
	url := createDatabase(tb, name, options, settings...)
	for _, language := range []string{"tr_TR.UTF-8", "de_DE.UTF-8", "fr_FR.UTF-8"} {
		if execute(config(tb, URL(tb)), fmt.Sprintf("ALTER DATABASE %s SET lc_messages = '%s'", name, language)) == nil {
			tb.Logf("pgtest: database %s: the server's messages are in %s", name, language)
			break
		}
	}
	return url
}
