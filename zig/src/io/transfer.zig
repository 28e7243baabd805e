//! What one system call's answer means for a read: written once, used by every device, so that a caller sees only
//! success, an I/O error, or the end of the file.
const std = @import("std");
const Read = @import("read.zig").Read;
const sector_size = @import("read.zig").sector_size;
const E = std.os.linux.E;

/// Interrupted or refused attempts in a row before a read fails with what the kernel said.
pub const retries_max = 8;

/// A short read is continued from a multiple of this behind the read's own offset, so that the continuation is as well
/// aligned as the read was, on drives with sectors of 512 and of 4096 bytes alike.
const resume_unit = 4096;

pub const Next = enum { done, again };

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
