// Reads cases from stdin: kind (0 request, 1 response), u32 length, bytes. Writes for each one line:
// error code (or "-"), a blank, the body's bytes in hexadecimal, as node's HTTP parser (llhttp, strict) sees it.
'use strict';
process.removeAllListeners('warning');
process.on('warning', () => {});
const { HTTPParser } = process.binding('http_parser');
const input = require('fs').readFileSync(0);
const lines = [];
for (let at = 0; at < input.length;) {
	const kind = input[at];
	const length = input.readUInt32LE(at + 1);
	const bytes = Buffer.from(input.subarray(at + 5, at + 5 + length));
	at += 5 + length;
	const body = [];
	const parser = new HTTPParser();
	parser.initialize(kind ? HTTPParser.RESPONSE : HTTPParser.REQUEST, {});
	parser[HTTPParser.kOnHeadersComplete] = () => 0;
	parser[HTTPParser.kOnBody] = (...piece) => {
		const [buffer, offset, size] = piece;
		body.push(size === undefined ? buffer.toString('hex') : buffer.toString('hex', offset, offset + size));
	};
	const result = parser.execute(bytes, 0, bytes.length);
	lines.push(`${result instanceof Error ? result.code : '-'} ${body.join('')}`);
}
process.stdout.write(lines.join('\n') + '\n');
