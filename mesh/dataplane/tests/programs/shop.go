// A client and a server of Go's net/http: "client HOST:PORT" or "server". Both know the paths of tests/support/backend.rs.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func pattern(size int) []byte {
	out := make([]byte, size)
	for at := range out {
		out[at] = 'a' + byte((at+at/26*7)%26)
	}
	return out
}

func check(holds bool, format string, values ...any) {
	if !holds {
		fmt.Fprintf(os.Stderr, format+"\n", values...)
		os.Exit(1)
	}
}

// Nothing that says how long it is.
type stream struct{ io.Reader }

type user struct {
	client  *http.Client
	service string
	reused  atomic.Int64
}

func (u *user) ask(method, path string, body io.Reader, expect bool) (int, []byte) {
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if got.Reused {
			u.reused.Add(1)
		}
	}}
	ctx := httptrace.WithClientTrace(context.Background(), trace)
	request, err := http.NewRequestWithContext(ctx, method, "http://"+u.service+path, body)
	check(err == nil, "%s: %v", path, err)
	request.Host = "shop.test"
	if expect {
		request.Header.Set("Expect", "100-continue")
	}
	response, err := u.client.Do(request)
	check(err == nil, "%s %s: %v", method, path, err)
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	check(err == nil, "%s %s: %v after %d bytes", method, path, err, len(all))
	return response.StatusCode, all
}

func (u *user) turns(worker int) {
	for turn := 0; turn < 30; turn++ {
		size := (worker*7919 + turn*4099) % 150_000
		if turn == 7 {
			size = 5_000_000
		}
		wanted := pattern(size)
		status, got := u.ask("GET", fmt.Sprintf("/size/%d", size), nil, false)
		check(status == 200 && bytes.Equal(got, wanted), "/size/%d: %d, %d bytes", size, status, len(got))
		_, got = u.ask("GET", fmt.Sprintf("/chunked/%d", size), nil, false)
		check(bytes.Equal(got, wanted), "/chunked/%d: %d bytes", size, len(got))
		end := fmt.Sprintf("body %d 1", size)
		for way, body := range []io.Reader{bytes.NewReader(wanted), stream{bytes.NewReader(wanted)}, bytes.NewReader(wanted)} {
			_, got = u.ask("POST", "/up", body, way == 2 && size > 0)
			check(strings.HasSuffix(string(got), end), "upload %d of %d: %.200s", way, size, got)
		}
		status, got = u.ask("HEAD", "/size/5000", nil, false)
		check(status == 200 && len(got) == 0, "HEAD: %d", status)
		status, _ = u.ask("GET", "/forbidden", nil, false)
		check(status == 403, "/forbidden: %d", status)
		status, _ = u.ask("GET", "/envoy", nil, false)
		check(status == 200, "/envoy: %d", status)
	}
}

// Gives up in the middle of a response: the connection is closed.
func (u *user) giveUp() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request, _ := http.NewRequestWithContext(ctx, "GET", "http://"+u.service+"/size/5000000", nil)
	request.Host = "shop.test"
	response, err := u.client.Do(request)
	check(err == nil, "%v", err)
	_, err = io.ReadFull(response.Body, make([]byte, 1000))
	check(err == nil, "%v", err)
	cancel()
	response.Body.Close()
}

func client(service string) {
	transport := &http.Transport{MaxIdleConnsPerHost: 8, ExpectContinueTimeout: 20 * time.Second}
	u := &user{client: &http.Client{
		Transport:     transport,
		Timeout:       60 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, service: service}
	var all sync.WaitGroup
	for worker := 0; worker < 8; worker++ {
		all.Add(1)
		go func() {
			defer all.Done()
			u.turns(worker)
			u.giveUp()
		}()
	}
	all.Wait()
	status, _ := u.ask("GET", "/old", nil, false)
	check(status == 301, "/old: %d", status)
	fmt.Println("reused", u.reused.Load())
}

func server() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err == nil, "%v", err)
	fmt.Println(listener.Addr())
	http.HandleFunc("/size/{size}", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.PathValue("size"))
		w.Header().Set("Content-Length", strconv.Itoa(size))
		w.Write(pattern(size))
	})
	http.HandleFunc("/chunked/{size}", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.PathValue("size"))
		w.(http.Flusher).Flush()
		w.Write(pattern(size))
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		same := 0
		if err == nil && bytes.Equal(body, pattern(len(body))) {
			same = 1
		}
		fmt.Fprintf(w, "%s %s HTTP/1.1|body %d %d", r.Method, r.RequestURI, len(body), same)
	})
	// It ends with its parent, which holds the other end.
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	http.Serve(listener, nil)
}

func main() {
	if os.Args[1] == "server" {
		server()
	} else {
		client(os.Args[2])
	}
}
