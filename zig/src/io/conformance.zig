//! One suite for every device: what device.zig promises, on a real file with known content. A device that may fail a
//! read on purpose is held to it without faults.
const std = @import("std");
const base = @import("base");
const contract = @import("device.zig");
const probe = @import("probe.zig");
const Read = @import("read.zig").Read;
const Uring = @import("uring.zig").Uring;
const Threads = @import("threads.zig").Threads;
const testing = std.testing;
const E = std.os.linux.E;

const page_size = 4096;
const page_count = 200;
/// The last page of the file is not whole.
const tail_size = 1000;
const file_size = page_count * page_size + tail_size;

/// A second file: shorter, and of other bytes.
const second_page_count = 37;
const second_file_size = second_page_count * page_size;

/// Byte `i` of a test file.
fn byte_at(file: u1, i: u64) u8 {
    const byte: u8 = @truncate((i *% 0x9e3779b97f4a7c15) >> 56);
    return byte ^ @as(u8, if (file == 0) 0 else 0x5a);
}

fn expect_content(read: *const Read) !void {
    for (read.data(), read.offset..) |byte, i| {
        if (byte != byte_at(read.file, i)) {
            std.debug.print("byte {d} of file {d}: {x} where {x} stands\n", .{ i, read.file, byte, byte_at(read.file, i) });
            return error.TestUnexpectedResult;
        }
    }
}

/// The known files in a folder of their own, open with O_DIRECT where the file system allows it.
const Fixture = struct {
    folder: testing.TmpDir,
    path: [:0]u8,
    pages: probe.Pages,
    second: probe.Pages,

    fn init() !Fixture {
        var folder = testing.tmpDir(.{});
        errdefer folder.cleanup();
        const path = try write(&folder, 0, "pages", file_size);
        errdefer testing.allocator.free(path);
        const second_path = try write(&folder, 1, "second", second_file_size);
        defer testing.allocator.free(second_path);
        const pages = try probe.open_pages(path, true);
        errdefer std.posix.close(pages.fd);
        return .{ .folder = folder, .path = path, .pages = pages, .second = try probe.open_pages(second_path, true) };
    }

    fn write(folder: *testing.TmpDir, file: u1, name: []const u8, size: usize) ![:0]u8 {
        const content = try testing.allocator.alloc(u8, size);
        defer testing.allocator.free(content);
        for (content, 0..) |*byte, i| byte.* = byte_at(file, i);
        try folder.dir.writeFile(.{ .sub_path = name, .data = content });
        const real = try folder.dir.realpathAlloc(testing.allocator, name);
        defer testing.allocator.free(real);
        return testing.allocator.dupeZ(u8, real);
    }

    fn deinit(fixture: *Fixture) void {
        std.posix.close(fixture.pages.fd);
        std.posix.close(fixture.second.fd);
        testing.allocator.free(fixture.path);
        fixture.folder.cleanup();
    }
};

const Buffers = []align(page_size) u8;

fn allocate(size: usize) !Buffers {
    const buffers = try testing.allocator.alignedAlloc(u8, .fromByteUnits(page_size), size);
    @memset(buffers, 0xee);
    return buffers;
}

/// A device's own tests call `run` with a seed.
pub fn Suite(comptime Device: type) type {
    return struct {
        pub fn run(seed: u64) !void {
            contract.check(Device);
            errdefer std.debug.print("conformance of {s}: seed={d}\n", .{ @tagName(Device.kind), seed });
            var fixture = try Fixture.init();
            defer fixture.deinit();
            for ([_]u32{ 1, 3, 64 }) |queue_depth| {
                try random_reads(&fixture, queue_depth, seed, .one);
                try random_reads(&fixture, queue_depth, seed +% 1, .none);
            }
            try large_reads(&fixture);
            try buffers_elsewhere(&fixture);
            try ends_of_file(&fixture);
            try two_files(&fixture, seed);
            try idle_device(&fixture);
            try refused_file(&fixture);
            try drained_in_flight(&fixture);
            try moved_to_a_thread(&fixture);
            try many_devices(&fixture, seed);
        }

        /// Keeps more reads than the depth under way, submits in bursts of random size, and reuses each read and its
        /// buffer as soon as it came back. Completion order is free; each read must come back exactly once.
        fn random_reads(fixture: *Fixture, queue_depth: u32, seed: u64, wait: contract.Wait) !void {
            var prng = base.Prng.init(seed);
            const reads_max = 100;
            const total = 600;
            const buffers = try allocate(reads_max * page_size);
            defer testing.allocator.free(buffers);
            var counting = std.testing.FailingAllocator.init(testing.allocator, .{});
            var device = try Device.init(counting.allocator(), .{ .file = fixture.pages.fd, .queue_depth = queue_depth, .buffers = buffers });
            defer device.deinit();
            const allocations = counting.allocations;
            var reads: [reads_max]Read = undefined;
            var free: [reads_max]u8 = undefined;
            for (&free, 0..) |*slot, i| slot.* = @intCast(i);
            var free_count: usize = reads_max;
            var submitted: u32 = 0;
            var ended: u32 = 0;
            while (ended < total) {
                const burst = @min(prng.below(20), free_count, total - submitted);
                for (0..burst) |_| {
                    free_count -= 1;
                    const slot = free[free_count];
                    reads[slot] = .{
                        .offset = prng.below(page_count) * page_size,
                        .buffer = @alignCast(buffers.ptr + @as(usize, slot) * page_size),
                        .length = page_size,
                        .context = slot,
                    };
                    device.submit(&reads[slot]);
                    submitted += 1;
                }
                if (prng.boolean()) device.flush();
                try testing.expectEqual(submitted - ended, device.in_flight());
                var done: [33]*Read = undefined;
                const room: usize = @intCast(1 + prng.below(done.len));
                const had = device.in_flight();
                const count = device.poll(done[0..room], wait);
                if (wait == .one and had > 0) try testing.expect(count > 0);
                if (count == 0) std.atomic.spinLoopHint();
                for (done[0..count]) |read| {
                    try testing.expectEqual(.ok, read.status);
                    try testing.expectEqual(0, read.errno);
                    try expect_content(read);
                    for (free[0..free_count]) |slot| try testing.expect(slot != read.context);
                    free[free_count] = @intCast(read.context);
                    free_count += 1;
                }
                ended += @intCast(count);
            }
            try testing.expectEqual(0, device.in_flight());
            try testing.expectEqual(reads_max, free_count);
            try testing.expectEqual(allocations, counting.allocations);
        }

        /// All that is submitted, until it has come back.
        fn finish(device: *Device) !u32 {
            var total: u32 = 0;
            while (device.in_flight() > 0) {
                var done: [16]*Read = undefined;
                const count = device.poll(&done, .one);
                try testing.expect(count > 0);
                total += @intCast(count);
            }
            return total;
        }

        fn large_reads(fixture: *Fixture) !void {
            const size = 64 * 1024;
            const buffers = try allocate(2 * size);
            defer testing.allocator.free(buffers);
            var device = try Device.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 4, .buffers = buffers });
            defer device.deinit();
            var reads = [2]Read{
                .{ .offset = page_size, .buffer = buffers.ptr, .length = size },
                .{ .offset = 100 * page_size, .buffer = @alignCast(buffers.ptr + size), .length = size },
            };
            for (&reads) |*read| device.submit(read);
            try testing.expectEqual(2, try finish(&device));
            for (&reads) |*read| {
                try testing.expectEqual(.ok, read.status);
                try expect_content(read);
            }
        }

        /// Registered memory is an advantage, not a condition; a read may straddle its end too.
        fn buffers_elsewhere(fixture: *Fixture) !void {
            const buffers = try allocate(4 * page_size);
            defer testing.allocator.free(buffers);
            var device = try Device.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 2, .buffers = buffers[0 .. 2 * page_size] });
            defer device.deinit();
            var read: Read = .{ .offset = 7 * page_size, .buffer = @alignCast(buffers.ptr + page_size), .length = 3 * page_size };
            device.submit(&read);
            try testing.expectEqual(1, try finish(&device));
            try testing.expectEqual(.ok, read.status);
            try expect_content(&read);
            var none = try Device.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 2 });
            defer none.deinit();
            none.submit(&read);
            try testing.expectEqual(1, try finish(&none));
            try testing.expectEqual(.ok, read.status);
        }

        fn ends_of_file(fixture: *Fixture) !void {
            const buffers = try allocate(3 * 2 * page_size);
            defer testing.allocator.free(buffers);
            var device = try Device.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 8, .buffers = buffers });
            defer device.deinit();
            var reads: [3]Read = undefined;
            for (&reads, [_]u64{ page_count - 1, page_count, page_count + 5 }, 0..) |*read, page, i| {
                read.* = .{ .offset = page * page_size, .buffer = @alignCast(buffers.ptr + i * 2 * page_size), .length = 2 * page_size };
                device.submit(read);
            }
            try testing.expectEqual(3, try finish(&device));
            for (&reads, [_]u32{ page_size + tail_size, tail_size, 0 }) |*read, bytes| {
                try testing.expectEqual(.short, read.status);
                try testing.expectEqual(bytes, read.bytes);
                try expect_content(read);
            }
        }

        /// Reads of both files at once, some of them behind the end of the second: each brings its own file's bytes.
        fn two_files(fixture: *Fixture, seed: u64) !void {
            const count = 60;
            const length = 2 * page_size;
            const buffers = try allocate(count * length);
            defer testing.allocator.free(buffers);
            var device = try Device.init(testing.allocator, .{
                .file = fixture.pages.fd,
                .second_file = fixture.second.fd,
                .queue_depth = 8,
                .buffers = buffers[0 .. count / 2 * length],
            });
            defer device.deinit();
            var prng = base.Prng.init(seed);
            var reads: [count]Read = undefined;
            for (&reads, 0..) |*read, i| {
                read.* = .{
                    .file = @intCast(prng.below(2)),
                    .offset = prng.below(second_page_count + 3) * page_size,
                    .buffer = @alignCast(buffers.ptr + i * length),
                    .length = length,
                };
                device.submit(read);
            }
            try testing.expectEqual(count, try finish(&device));
            for (&reads) |*read| {
                const left = if (read.file == 0) length else @min(length, second_file_size -| read.offset);
                try testing.expectEqual(left, read.bytes);
                try testing.expectEqual(left == length, read.status == .ok);
                try expect_content(read);
            }
        }

        fn idle_device(fixture: *Fixture) !void {
            var device = try Device.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 1 });
            defer device.deinit();
            var done: [1]*Read = undefined;
            device.flush();
            try testing.expectEqual(0, device.poll(&done, .none));
            try testing.expectEqual(0, device.poll(&done, .one));
            device.drain();
        }

        /// A file that cannot be read: each read says so, none is lost.
        fn refused_file(fixture: *Fixture) !void {
            const writable = try std.posix.openZ(fixture.path, .{ .ACCMODE = .WRONLY, .CLOEXEC = true }, 0);
            defer std.posix.close(writable);
            const buffers = try allocate(5 * page_size);
            defer testing.allocator.free(buffers);
            var device = try Device.init(testing.allocator, .{ .file = writable, .queue_depth = 2, .buffers = buffers });
            defer device.deinit();
            var reads: [5]Read = undefined;
            for (&reads, 0..) |*read, i| {
                read.* = .{ .offset = i * page_size, .buffer = @alignCast(buffers.ptr + i * page_size), .length = page_size };
                device.submit(read);
            }
            try testing.expectEqual(5, try finish(&device));
            for (&reads) |*read| {
                try testing.expectEqual(.io, read.status);
                try testing.expectEqual(@as(i32, @intFromEnum(E.BADF)), read.errno);
            }
        }

        /// Closing with reads under way leaves each with a final status, and memory that may be freed.
        fn drained_in_flight(fixture: *Fixture) !void {
            const count = 40;
            const buffers = try allocate(count * page_size);
            defer testing.allocator.free(buffers);
            for ([_]bool{ false, true }) |flushed| {
                var device = try Device.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 8, .buffers = buffers });
                var reads: [count]Read = undefined;
                for (&reads, 0..) |*read, i| {
                    read.* = .{ .offset = i * page_size, .buffer = @alignCast(buffers.ptr + i * page_size), .length = page_size };
                    device.submit(read);
                }
                if (flushed) {
                    device.flush();
                    var done: [4]*Read = undefined;
                    for (done[0..device.poll(&done, .one)]) |read| try testing.expectEqual(.ok, read.status);
                }
                device.drain();
                try testing.expectEqual(0, device.in_flight());
                var canceled: u32 = 0;
                for (&reads) |*read| switch (read.status) {
                    .ok => try expect_content(read),
                    .canceled => canceled += 1,
                    else => return error.TestUnexpectedResult,
                };
                if (!flushed) try testing.expectEqual(count, canceled);
                // Drained, not closed: it still reads.
                device.submit(&reads[0]);
                try testing.expectEqual(1, try finish(&device));
                try testing.expectEqual(.ok, reads[0].status);
                for (&reads) |*read| device.submit(read);
                device.flush();
                device.deinit();
                for (&reads) |*read| try testing.expect(read.status == .ok or read.status == .canceled);
            }
        }

        /// Opened here, moved, used on another thread, closed here.
        fn moved_to_a_thread(fixture: *Fixture) !void {
            const opened = try Device.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 4 });
            var device = opened;
            defer device.deinit();
            const thread = try std.Thread.spawn(.{}, use_and_drain, .{&device});
            thread.join();
            try testing.expectEqual(0, device.in_flight());
        }

        fn use_and_drain(device: *Device) void {
            var pages: [2][page_size]u8 align(page_size) = undefined;
            var reads: [2]Read = undefined;
            for (&reads, &pages, 3..) |*read, *page, i| {
                read.* = .{ .offset = i * page_size, .buffer = page, .length = page_size };
                device.submit(read);
            }
            const count = finish(device) catch 0;
            if (count != 2 or reads[0].status != .ok or reads[1].status != .ok) @panic("a read on the second thread failed");
            for (&reads) |*read| device.submit(read);
            device.flush();
            device.drain();
        }

        /// Several workers, each with its own device on the same file.
        fn many_devices(fixture: *Fixture, seed: u64) !void {
            var threads: [3]std.Thread = undefined;
            var failures: std.atomic.Value(u32) = .init(0);
            for (&threads, 0..) |*thread, i| thread.* = try std.Thread.spawn(.{}, one_of_many, .{ fixture, seed +% i, &failures });
            for (threads) |thread| thread.join();
            try testing.expectEqual(0, failures.load(.acquire));
        }

        fn one_of_many(fixture: *Fixture, seed: u64, failures: *std.atomic.Value(u32)) void {
            random_reads(fixture, 16, seed, .one) catch {
                _ = failures.fetchAdd(1, .acq_rel);
            };
        }
    };
}

/// The same random reads through two devices bring the same bytes and the same statuses.
pub fn compare(comptime A: type, comptime B: type, seed: u64) !void {
    errdefer std.debug.print("{s} against {s}: seed={d}\n", .{ @tagName(A.kind), @tagName(B.kind), seed });
    var fixture = try Fixture.init();
    defer fixture.deinit();
    const count = 64;
    const length_max = 4 * page_size;
    const buffers_a = try allocate(count * length_max);
    defer testing.allocator.free(buffers_a);
    const buffers_b = try allocate(count * length_max);
    defer testing.allocator.free(buffers_b);
    var a = try A.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 16, .buffers = buffers_a });
    defer a.deinit();
    var b = try B.init(testing.allocator, .{ .file = fixture.pages.fd, .queue_depth = 16, .buffers = buffers_b });
    defer b.deinit();
    var prng = base.Prng.init(seed);
    var reads_a: [count]Read = undefined;
    var reads_b: [count]Read = undefined;
    for (&reads_a, &reads_b, 0..) |*read_a, *read_b, i| {
        const at = i * length_max;
        read_a.* = .{
            .offset = prng.below(page_count + 3) * page_size,
            .buffer = @alignCast(buffers_a.ptr + at),
            .length = @intCast((1 + prng.below(4)) * page_size),
        };
        read_b.* = read_a.*;
        read_b.buffer = @alignCast(buffers_b.ptr + at);
        a.submit(read_a);
        b.submit(read_b);
    }
    _ = try Suite(A).finish(&a);
    _ = try Suite(B).finish(&b);
    for (&reads_a, &reads_b) |*read_a, *read_b| {
        try testing.expectEqual(read_a.status, read_b.status);
        try testing.expectEqualSlices(u8, read_a.data(), read_b.data());
    }
}

/// Whether this machine refuses io_uring; then says so on standard error.
fn skip_uring() bool {
    var fixture = Fixture.init() catch return false;
    defer fixture.deinit();
    const errno = probe.uring_errno_of(fixture.pages.fd);
    if (errno == 0) return false;
    std.debug.print("\nSKIPPED: the tests of the io_uring device: refused here with errno {d} ({t})\n", .{ errno, @as(E, @enumFromInt(errno)) });
    return true;
}

test "threads" {
    try Suite(Threads).run(testing.random_seed);
}

test "uring" {
    if (skip_uring()) return error.SkipZigTest;
    try Suite(Uring).run(testing.random_seed);
}

test "uring against threads" {
    if (skip_uring()) return error.SkipZigTest;
    for (0..5) |i| try compare(Uring, Threads, testing.random_seed +% i);
}
