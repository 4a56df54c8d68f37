package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// Kafka's formats, as short as they can be: Metadata v4, Produce v8, Fetch v4, record batches v2.

const (
	apiProduce  = 0
	apiFetch    = 1
	apiMetadata = 3
	fetchBytes  = 8 << 20
	batchBytes  = 61
)

var errShort = errors.New("the response ends too early")

type record struct {
	offset int64
	value  []byte
}

func appendInt16(to []byte, number int16) []byte {
	return binary.BigEndian.AppendUint16(to, uint16(number))
}
func appendInt32(to []byte, number int32) []byte {
	return binary.BigEndian.AppendUint32(to, uint32(number))
}
func appendInt64(to []byte, number int64) []byte {
	return binary.BigEndian.AppendUint64(to, uint64(number))
}

func appendString(to []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint16(to, uint16(len(text))), text...)
}

// isRetriable is true of UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER.
func isRetriable(code int16) bool { return code == 3 || code == 5 || code == 6 }

// encodeBatch uses that Go's varints are Kafka's.
func encodeBatch(values []string) []byte {
	now := time.Now().UnixMilli()
	tail := appendInt32(appendInt16(nil, 0), int32(len(values)-1))
	tail = appendInt64(appendInt64(tail, now), now)
	tail = appendInt32(appendInt16(appendInt64(tail, -1), -1), -1) // no producer id
	tail = appendInt32(tail, int32(len(values)))
	for delta, value := range values {
		body := binary.AppendVarint([]byte{0}, 0)
		body = binary.AppendVarint(body, int64(delta))
		body = binary.AppendVarint(body, -1) // no key
		body = append(binary.AppendVarint(body, int64(len(value))), value...)
		body = binary.AppendVarint(body, 0) // no headers
		tail = append(binary.AppendVarint(tail, int64(len(body))), body...)
	}
	batch := appendInt32(appendInt64(nil, 0), int32(9+len(tail)))
	batch = append(appendInt32(batch, -1), 2)
	sum := crc32.Checksum(tail, crc32.MakeTable(crc32.Castagnoli))
	return append(binary.BigEndian.AppendUint32(batch, sum), tail...)
}

// decodeBatches returns the records from `offset` on, of whole batches that are not compressed.
func decodeBatches(data []byte, offset int64) (found []record, err error) {
	for len(data) >= batchBytes {
		base := int64(binary.BigEndian.Uint64(data))
		end := 12 + int(binary.BigEndian.Uint32(data[8:]))
		if end > len(data) || end < batchBytes {
			break
		}
		left := data[batchBytes:end]
		for count := binary.BigEndian.Uint32(data[57:]); count > 0; count-- {
			body, err := take(&left)
			if err != nil || len(body) == 0 {
				return nil, errShort
			}
			body = body[1:]
			if _, err := takeVarint(&body); err != nil { // timestamp
				return nil, err
			}
			delta, err := takeVarint(&body)
			if err != nil {
				return nil, err
			}
			if _, err := take(&body); err != nil {
				return nil, err
			}
			value, err := take(&body)
			if err != nil {
				return nil, err
			}
			if base+delta >= offset {
				found = append(found, record{base + delta, value})
			}
		}
		data = data[end:]
	}
	return found, nil
}

func takeVarint(from *[]byte) (int64, error) {
	number, width := binary.Varint(*from)
	if width <= 0 {
		return 0, errShort
	}
	*from = (*from)[width:]
	return number, nil
}

// take cuts a length and so many bytes from the front; a length below 0 means null.
func take(from *[]byte) ([]byte, error) {
	length, err := takeVarint(from)
	if err != nil || length > int64(len(*from)) {
		return nil, errShort
	}
	if length < 0 {
		return nil, nil
	}
	taken := (*from)[:length]
	*from = (*from)[length:]
	return taken, nil
}

// partition returns the error and the records of the one partition in a Fetch response.
func partition(body []byte, topic string) (code int16, records []byte, err error) {
	at := 8 + 2 + len(topic) + 8
	if len(body) < at+22 {
		return 0, nil, errShort
	}
	from := at + 22 + 4
	if aborted := int32(binary.BigEndian.Uint32(body[at+18:])); aborted > 0 {
		from += 16 * int(aborted)
	}
	if len(body) < from {
		return 0, nil, errShort
	}
	return int16(binary.BigEndian.Uint16(body[at:])), body[from:], nil
}

// create asks for the topic's metadata, which creates it where the broker allows that.
func create(s *session, topic string) error {
	_, err := s.ask(apiMetadata, 4, append(appendString(appendInt32(nil, 1), topic), 1))
	return err
}

// produce appends to partition 0. The batch travels in a frame of its own, so it is not copied.
func produce(s *session, topic string, values []string) error {
	batch := encodeBatch(values)
	head := appendInt16(appendInt16(nil, -1), -1) // no transactional id, acks=all
	head = appendString(appendInt32(appendInt32(head, 30_000), 1), topic)
	head = appendInt32(appendInt32(appendInt32(head, 1), 0), int32(len(batch)))
	for {
		answer, err := s.ask(apiProduce, 8, head, batch)
		if err != nil {
			return err
		}
		at := 4 + 2 + len(topic) + 4 + 4
		if len(answer) < at+2 {
			return errShort
		}
		code := int16(binary.BigEndian.Uint16(answer[at:]))
		if code == 0 {
			return nil
		}
		if !isRetriable(code) {
			return fmt.Errorf("produce: Kafka's error %d", code)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// fetch returns the records of partition 0 from `offset` on; it waits up to a second for some.
func fetch(s *session, topic string, offset int64) ([]record, error) {
	body := appendInt32(appendInt32(appendInt32(nil, -1), 1000), 1)
	body = appendInt32(append(appendInt32(body, fetchBytes), 0), 1)
	body = appendInt32(appendInt32(appendString(body, topic), 1), 0)
	body = appendInt32(appendInt64(body, offset), fetchBytes)
	answer, err := s.ask(apiFetch, 4, body)
	if err != nil {
		return nil, err
	}
	code, records, err := partition(answer, topic)
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("fetch: Kafka's error %d", code)
	}
	return decodeBatches(records, offset)
}
