package leasetable

import "sync"

// queue lines up the goroutines of this process that wait for the same name. Only the
// first of each line asks the server, so that a thousand waiters cost as many questions
// as one, and they are served in the order in which they came.
type queue struct {
	mu    sync.Mutex
	lines map[string][]*turn // guarded by mu; no empty line stays
}

// turn is a place in a line.
type turn struct {
	name  string
	first chan struct{} // closed when everybody before has left
	freed chan struct{} // holds one: this process has released the lock
}

// join takes the last place in the line for name.
func (q *queue) join(name string) *turn {
	t := &turn{name: name, first: make(chan struct{}), freed: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	line := append(q.lines[name], t)
	q.lines[name] = line
	if len(line) == 1 {
		close(t.first)
	}
	return t
}

// leave gives the place up, granted or not. The next in line may be the first then.
func (q *queue) leave(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.lines[t.name]
	for i, other := range line {
		if other != t {
			continue
		}
		line = append(line[:i:i], line[i+1:]...)
		if i == 0 && len(line) > 0 {
			close(line[0].first)
		}
		break
	}
	if len(line) == 0 {
		delete(q.lines, t.name)
		return
	}
	q.lines[t.name] = line
}

// free tells the first in line that name was released here, so that it asks at once.
func (q *queue) free(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.lines[name]; len(line) > 0 {
		select {
		case line[0].freed <- struct{}{}:
		default: // told already
		}
	}
}
