//! One read, owned by the caller, and the queue that devices keep reads in.
const std = @import("std");
const assert = std.debug.assert;
const E = std.os.linux.E;

/// Offsets, lengths and addresses of reads are multiples of this: the smallest that O_DIRECT accepts anywhere.
/// (A file on a drive with larger sectors needs larger multiples; pages of 4096 bytes satisfy every drive.)
pub const sector_size = 512;

pub const Status = enum(u8) {
    /// Not given to a device yet.
    idle,
    /// A device has it: neither the read nor its buffer may be moved or touched.
    pending,
    /// All `length` bytes are in the buffer.
    ok,
    /// The device refused or failed: `errno` says how.
    io,
    /// The file ended first: `bytes` are in the buffer.
    short,
    /// The device was closed before the read had begun.
    canceled,
};

/// One read. It must stay where it is from `submit` until `poll` hands it back.
pub const Read = struct {
    /// Bytes from the start of the file.
    offset: u64,
    /// Which of the device's files: 0 is `Options.file`, 1 `Options.second_file`.
    file: u1 = 0,
    /// Read in the place of that file, where the device was not opened for it.
    fd: ?std.posix.fd_t = null,
    buffer: [*]align(sector_size) u8,
    /// Bytes wanted.
    length: u32,
    /// The caller's own; no device looks at it.
    context: usize = 0,

    // Set by the device.
    status: Status = .idle,
    /// The positive errno when `status` is `.io`, else 0.
    errno: i32 = 0,
    /// Bytes that stand in the buffer; equals `length` when `status` is `.ok`.
    bytes: u32 = 0,

    // The device's own while it has the read.
    next: ?*Read = null,
    previous: ?*Read = null,
    /// Bytes before the point from which the current attempt reads (see read.zig).
    attempt_start: u32 = 0,
    retry_count: u8 = 0,

    /// Called first by every device's `submit`, and resets what an earlier use left: the one place where alignment is
    /// checked.
    pub fn verify(read: *Read) void {
        assert(read.status != .pending);
        assert(read.length > 0);
        assert(read.length % sector_size == 0);
        assert(read.offset % sector_size == 0);
        assert(@intFromPtr(read.buffer) % sector_size == 0);
        read.status = .pending;
        read.errno = 0;
        read.bytes = 0;
        read.next = null;
        read.attempt_start = 0;
        read.retry_count = 0;
    }

    /// The bytes that arrived.
    pub fn data(read: *const Read) []align(sector_size) const u8 {
        assert(read.status == .ok or read.status == .short);
        return read.buffer[0..read.bytes];
    }

    // The range that the current attempt asks the system for.
    pub fn attempt_offset(read: *const Read) u64 {
        return read.offset + read.attempt_start;
    }
    pub fn attempt_buffer(read: *const Read) [*]u8 {
        return read.buffer + read.attempt_start;
    }
    pub fn attempt_length(read: *const Read) u32 {
        return read.length - read.attempt_start;
    }
};

/// First in, first out, through `Read.next`: no memory of its own, no limit.
pub const Queue = struct {
    first: ?*Read = null,
    last: ?*Read = null,
    count: u32 = 0,

    pub fn push(queue: *Queue, read: *Read) void {
        read.next = null;
        if (queue.last) |last| last.next = read else queue.first = read;
        queue.last = read;
        queue.count += 1;
    }

    /// For a read whose turn has already come once.
    pub fn push_front(queue: *Queue, read: *Read) void {
        read.next = queue.first;
        queue.first = read;
        if (queue.last == null) queue.last = read;
        queue.count += 1;
    }

    pub fn pop(queue: *Queue) ?*Read {
        const read = queue.first orelse return null;
        queue.first = read.next;
        if (queue.first == null) queue.last = null;
        read.next = null;
        queue.count -= 1;
        return read;
    }

    /// All of `other` behind all of `queue`.
    pub fn append(queue: *Queue, other: *Queue) void {
        const first = other.first orelse return;
        if (queue.last) |last| last.next = first else queue.first = first;
        queue.last = other.last;
        queue.count += other.count;
        other.* = .{};
    }

    /// Ends every read in it as canceled.
    pub fn cancel(queue: *Queue) void {
        while (queue.pop()) |read| read.status = .canceled;
    }
};

// ---- transfers ----
//
// The meaning of one system call's result for a read: written once, used by every device, so that a caller sees only
// success, an I/O error, or the end of the file.

/// Interrupted or refused attempts in a row before a read fails with what the kernel said.
pub const retries_max = 8;

/// A short read is continued from a multiple of this behind the read's own offset, so that the continuation is as well
/// aligned as the read was, on drives with sectors of 512 and of 4096 bytes alike.
const resume_unit = 4096;

const Next = enum { done, again };

/// `result` is what the kernel returned for the current attempt: a byte count, or a negative errno.
/// `.again`: issue the read once more (its attempt_* functions say what to ask for).
pub fn advance(read: *Read, result: i32) Next {
    if (result < 0) return switch (@as(E, @enumFromInt(-result))) {
        // A signal, or no request to be had at the moment: the same attempt again.
        .INTR, .AGAIN => retry(read, -result),
        else => fail(read, -result),
    };
    const arrived = read.attempt_start + @as(u32, @intCast(result));
    std.debug.assert(arrived <= read.length);
    if (arrived == read.length) {
        read.bytes = arrived;
        read.status = .ok;
        return .done;
    }
    if (result == 0) return end_of_file(read);
    read.bytes = @max(read.bytes, arrived);
    const start = arrived - arrived % resume_unit;
    if (start > read.attempt_start) {
        read.retry_count = 0;
        read.attempt_start = start;
        return .again;
    }
    // The kernel may stop early anywhere, so only attempts that stop early again and again show that the file ends here.
    if (read.retry_count == retries_max) return end_of_file(read);
    read.retry_count += 1;
    return .again;
}

fn end_of_file(read: *Read) Next {
    read.status = .short;
    return .done;
}

fn retry(read: *Read, errno: i32) Next {
    if (read.retry_count == retries_max) return fail(read, errno);
    read.retry_count += 1;
    return .again;
}

fn fail(read: *Read, errno: i32) Next {
    read.status = .io;
    read.errno = errno;
    return .done;
}

const testing = std.testing;

fn fresh(buffer: []align(sector_size) u8) Read {
    var read: Read = .{ .offset = 8192, .buffer = buffer.ptr, .length = @intCast(buffer.len) };
    read.verify();
    return read;
}

test "the queue keeps its order" {
    var buffer: [sector_size]u8 align(sector_size) = undefined;
    var reads: [5]Read = undefined;
    for (&reads, 0..) |*read, i| read.* = .{ .offset = 0, .buffer = &buffer, .length = sector_size, .context = i };
    var a: Queue = .{};
    var b: Queue = .{};
    try std.testing.expectEqual(null, a.pop());
    a.append(&b);
    a.push(&reads[1]);
    a.push_front(&reads[0]);
    b.push(&reads[2]);
    b.push(&reads[3]);
    a.append(&b);
    a.push(&reads[4]);
    try std.testing.expectEqual(5, a.count);
    try std.testing.expectEqual(0, b.count);
    for (0..5) |i| try std.testing.expectEqual(i, a.pop().?.context);
    try std.testing.expectEqual(null, a.pop());
    b.push_front(&reads[3]);
    b.push(&reads[2]);
    try std.testing.expectEqual(3, b.pop().?.context);
    try std.testing.expectEqual(2, b.pop().?.context);
}

test "a whole read, and one refused until it is given up" {
    var buffer: [8192]u8 align(4096) = undefined;
    var read = fresh(&buffer);
    try testing.expectEqual(.done, advance(&read, 8192));
    try testing.expectEqual(.ok, read.status);
    try testing.expectEqual(8192, read.data().len);

    read = fresh(&buffer);
    for (0..retries_max) |_| try testing.expectEqual(.again, advance(&read, -@as(i32, @intFromEnum(E.AGAIN))));
    try testing.expectEqual(.done, advance(&read, -@as(i32, @intFromEnum(E.INTR))));
    try testing.expectEqual(.io, read.status);
    try testing.expectEqual(@as(i32, @intFromEnum(E.INTR)), read.errno);

    read = fresh(&buffer);
    try testing.expectEqual(.done, advance(&read, -@as(i32, @intFromEnum(E.IO))));
    try testing.expectEqual(@as(i32, @intFromEnum(E.IO)), read.errno);
}

test "short reads continue at an aligned place and end at the end of the file" {
    var buffer: [3 * 4096]u8 align(4096) = undefined;
    var read = fresh(&buffer);
    // 5000 of 12288 bytes: from 4096 again.
    try testing.expectEqual(.again, advance(&read, 5000));
    try testing.expectEqual(8192 + 4096, read.attempt_offset());
    try testing.expectEqual(8192, read.attempt_length());
    try testing.expectEqual(@intFromPtr(&buffer) + 4096, @intFromPtr(read.attempt_buffer()));
    try testing.expectEqual(.done, advance(&read, 8192));
    try testing.expectEqual(.ok, read.status);

    // The same, but the file ends after 5000 bytes: no further attempt brings more.
    read = fresh(&buffer);
    try testing.expectEqual(.again, advance(&read, 5000));
    for (0..retries_max) |_| try testing.expectEqual(.again, advance(&read, 904));
    try testing.expectEqual(.done, advance(&read, 904));
    try testing.expectEqual(.short, read.status);
    try testing.expectEqual(5000, read.data().len);

    // Entirely behind the end.
    read = fresh(&buffer);
    try testing.expectEqual(.done, advance(&read, 0));
    try testing.expectEqual(.short, read.status);
    try testing.expectEqual(0, read.data().len);

    // Stopped early twice, the second time earlier, then whole.
    read = fresh(&buffer);
    try testing.expectEqual(.again, advance(&read, 3000));
    try testing.expectEqual(.again, advance(&read, 2000));
    try testing.expectEqual(.done, advance(&read, 12288));
    try testing.expectEqual(.ok, read.status);
    try testing.expectEqual(12288, read.bytes);
}
