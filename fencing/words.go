package fencing

import "strings"

// firstWords returns the first word of each statement in a text, in upper case. The name of
// a prepared statement is taken for a statement.
func firstWords(sql string) []string {
	var words []string
	begins := true
	for sql != "" {
		end := elementEnd(sql)
		element := sql[:end]
		sql = sql[end:]
		switch {
		case element == ";":
			begins = true
		case begins && !isBlank(element) && element != "(":
			words = append(words, strings.ToUpper(element))
			begins = false
			if !strings.Contains(sql, ";") {
				return words // as a rule
			}
		}
	}
	return words
}

// isBlank reports whether an element is white space or a comment.
func isBlank(element string) bool {
	return strings.Contains(" \t\r\n\f\v", element[:1]) || strings.HasPrefix(element, "--") || strings.HasPrefix(element, "/*")
}

// elementEnd returns the length of the first element of a text that is not empty: a
// comment, something quoted, a word, or else one byte. What is not closed goes on to the end.
func elementEnd(sql string) int {
	switch {
	case strings.HasPrefix(sql, "--"):
		return endAt(sql, "\n", 0)
	case strings.HasPrefix(sql, "/*"):
		return commentEnd(sql)
	case sql[0] == '\'', sql[0] == '"':
		return endAt(sql, sql[:1], 1) // one that is doubled begins the next
	case sql[0] == '$':
		return dollarEnd(sql)
	}
	end := 0
	for end < len(sql) && isWord(sql[end], end) {
		end++
	}
	if end == 1 && strings.EqualFold(sql[:1], "e") && strings.HasPrefix(sql[1:], "'") {
		return escapedEnd(sql)
	}
	return max(end, 1)
}

// isWord reports whether a byte can be that one of a word.
func isWord(b byte, at int) bool {
	letter := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || b >= 0x80
	return letter || at > 0 && (b >= '0' && b <= '9' || b == '$')
}

// endAt returns where the first mark from there on ends.
func endAt(sql, mark string, from int) int {
	at := strings.Index(sql[from:], mark)
	if at < 0 {
		return len(sql)
	}
	return from + at + len(mark)
}

// commentEnd returns the length of a comment, which may hold others.
func commentEnd(sql string) int {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(sql)
}

// dollarEnd returns the length of $tag$ ... $tag$, or 1 where the $ is that of a parameter.
func dollarEnd(sql string) int {
	end := 1
	for end < len(sql) && sql[end] != '$' && isWord(sql[end], end-1) {
		end++
	}
	if end == len(sql) || sql[end] != '$' {
		return 1
	}
	return endAt(sql, sql[:end+1], end+1)
}

// escapedEnd returns the length of E'...', where a backslash takes the next byte along.
func escapedEnd(sql string) int {
	for i := 2; i < len(sql); i++ {
		switch sql[i] {
		case '\\':
			i++
		case '\'':
			return i + 1
		}
	}
	return len(sql)
}
