package fencing_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// takeovers finds the statements that change tokens in a text of SQL or Go, and of those the ones
// that do not lock the row FOR UPDATE, neither themselves nor earlier in the same function.
func takeovers(text string) (all, unlocked []string) {
	text = regexp.MustCompile(`(?m)^\s*--.*$`).ReplaceAllString(text, "")
	for _, s := range regexp.MustCompile("[;`]|\"\n").Split(text, -1) {
		if !regexp.MustCompile(`(?is)\bUPDATE\s+(ONLY\s+)?\S*distributed_locks\b.*?\bSET\b[^;]*?\btoken\s*=\s*[^=]|\bDO\s+UPDATE\s+SET\b[^;]*?\btoken\s*=`).MatchString(s) || !strings.Contains(s, "distributed_locks") {
			continue
		}
		if where := regexp.MustCompile(`(?is)\bSET\b(.*?)(\bWHERE\b|\bFROM\b|$)`).FindStringSubmatch(s); where == nil || !regexp.MustCompile(`(?i)\btoken\s*=`).MatchString(where[1]) {
			continue
		}
		all = append(all, s)
		before := text[:strings.Index(text, s)]
		body := ""
		if i := strings.LastIndex(before, "AS $$"); i > strings.LastIndex(before, "\n$$;") {
			body = before[i:]
		}
		if !regexp.MustCompile(`(?is)\bFOR\s+UPDATE\b`).MatchString(body + s) {
			unlocked = append(unlocked, s)
		}
	}
	return all, unlocked
}

// TestTokensChangeUnderALock: a takeover changes no key column, so it meets a guard's FOR KEY SHARE
// only if it has locked the row FOR UPDATE before. Each statement of this module that changes a
// token does.
func TestTokensChangeUnderALock(t *testing.T) {
	t.Parallel()
	found := 0
	for _, dir := range []string{"../leasetable", "../leasetable/sql", "../migrations", "../pglock", "../pglock/sql", "."} {
		files, err := os.ReadDir(dir)
		ok(t, err)
		for _, file := range files {
			name := file.Name()
			if strings.HasSuffix(name, "_test.go") || !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".sql") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, name))
			ok(t, err)
			all, unlocked := takeovers(string(text))
			found += len(all)
			for _, s := range unlocked {
				t.Errorf("%s/%s changes a token without FOR UPDATE: %s", dir, name, s)
			}
		}
	}
	if found < 2 {
		t.Errorf("control: %d statements change tokens", found)
	}
	for text, n := range map[string]int{
		"UPDATE pglock.distributed_locks SET token = 5 WHERE name = 'n'":                                                       1,
		"UPDATE pglock.distributed_locks AS l\nSET version = 1,\n token = l.token + 1\nFROM x":                                 1,
		"INSERT INTO pglock.distributed_locks VALUES (1) ON CONFLICT (name) DO UPDATE SET token = 1":                           1,
		"UPDATE pglock.distributed_locks SET version = 1 WHERE token = 5":                                                      0,
		"WITH l AS (SELECT FROM pglock.distributed_locks FOR UPDATE) UPDATE pglock.distributed_locks SET token = 5 WHERE true": 0,
	} {
		if _, unlocked := takeovers(text); len(unlocked) != n {
			t.Errorf("control: %q has %d", text, len(unlocked))
		}
	}
}
