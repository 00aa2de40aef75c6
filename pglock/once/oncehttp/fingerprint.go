package oncehttp

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
)

// maxParts bounds the work for one request. Bodies with more parts are compared byte by byte, and
// mime/multipart reads no form from them either.
const maxParts = 1000

func defaultFingerprint(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	parts := sha256.New()
	media, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if strings.HasPrefix(media, "multipart/") && params["boundary"] != "" {
		reader := multipart.NewReader(bytes.NewReader(body), params["boundary"])
		part, err := reader.NextRawPart()
		for n := 0; err == nil && n < maxParts; n++ {
			content := sha256.New()
			if _, err = io.Copy(content, part); err != nil {
				break
			}
			fmt.Fprintf(parts, "%q %x\n", part.Header, content.Sum(nil)) // a map is printed in the order of its keys
			part, err = reader.NextRawPart()
		}
		if errors.Is(err, io.EOF) { // but not io.ErrUnexpectedEOF, if the body breaks off
			body = parts.Sum([]byte(media))
		}
	}
	return fmt.Appendf(nil, "%q %s", r.URL.RawQuery, body), nil
}
