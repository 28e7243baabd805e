//! The simulated device is a device like the others without faults, and with them does what its table says.
const std = @import("std");
const base = @import("base");
const io = @import("io");
const faults = @import("device.zig");
const Fault = faults.Fault;
const SimulatedDevice = @import("device.zig").SimulatedDevice;
const testing = std.testing;

const page_size = 4096;
const page_count = 256;

/// A device over memory with known bytes, and a read per page.
const Rig = struct {
    content: []u8,
    buffers: []align(page_size) u8,
    reads: [page_count]io.Read = undefined,
    device: SimulatedDevice,
    /// Pages in the order in which their reads ended.
    order: [page_count]u32 = undefined,

    fn init(seed: u64, set: u32) !*Rig {
        const rig = try testing.allocator.create(Rig);
        rig.content = try testing.allocator.alloc(u8, page_count * page_size);
        for (rig.content, 0..) |*byte, i| byte.* = @truncate((i *% 0x9e3779b97f4a7c15) >> 56);
        rig.buffers = try testing.allocator.alignedAlloc(u8, .fromByteUnits(page_size), page_count * page_size);
        rig.device = try SimulatedDevice.init_memory(testing.allocator, .{
            .file = -1,
            .queue_depth = 32,
            .buffers = rig.buffers,
            .simulated_seed = seed,
            .simulated_faults = set,
        }, rig.content);
        for (&rig.reads, 0..) |*read, page| read.* = .{
            .offset = page * page_size,
            .buffer = @alignCast(rig.buffers.ptr + page * page_size),
            .length = page_size,
            .context = page,
        };
        return rig;
    }

    fn deinit(rig: *Rig) void {
        rig.device.deinit();
        testing.allocator.free(rig.buffers);
        testing.allocator.free(rig.content);
        testing.allocator.destroy(rig);
    }

    fn read_all(rig: *Rig) !void {
        for (&rig.reads) |*read| rig.device.submit(read);
        var ended: usize = 0;
        var done: [8]*io.Read = undefined;
        while (rig.device.in_flight() > 0) {
            const wait: io.Wait = if (ended % 2 == 0) .one else .none;
            const count = rig.device.poll(&done, wait);
            if (wait == .one) try testing.expect(count > 0);
            for (done[0..count]) |read| {
                rig.order[ended] = @intCast(read.context);
                ended += 1;
            }
        }
        try testing.expectEqual(page_count, ended);
    }

    fn page_bytes(rig: *const Rig, i: usize) []const u8 {
        return rig.content[i * page_size ..][0..page_size];
    }

    fn is_right(rig: *const Rig, i: usize) bool {
        const read = &rig.reads[i];
        return read.status == .ok and std.mem.eql(u8, read.data(), rig.page_bytes(i));
    }

    fn right_count(rig: *const Rig) u32 {
        var count: u32 = 0;
        for (0..page_count) |i| count += @intFromBool(rig.is_right(i));
        return count;
    }
};

test "without faults it passes the suite of all devices" {
    try io.conformance.Suite(SimulatedDevice).run(testing.random_seed);
    try io.conformance.compare(SimulatedDevice, io.Threads, testing.random_seed);
}

test "late, reordered, short and refused attempts stay inside the device" {
    const hidden = [_]Fault{ .late, .reordered, .short, .again };
    var set: u32 = 0;
    for (hidden) |fault| set |= fault.mask();
    for (0..20) |i| {
        const seed = testing.random_seed +% i;
        errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
        var rig = try Rig.init(seed, set);
        defer rig.deinit();
        try rig.read_all();
        try testing.expectEqual(page_count, rig.right_count());
        for (hidden) |fault| try testing.expect(rig.device.injected_count(fault) > 0);
        try testing.expect(!std.sort.isSorted(u32, &rig.order, {}, std.sort.asc(u32)));
    }
}

test "no more reads than the depth are begun, and all of them are" {
    const rig = try Rig.init(6, Fault.late.mask() | Fault.reordered.mask() | Fault.short.mask() | Fault.again.mask());
    defer rig.deinit();
    const depth = rig.device.queue_depth;
    for (rig.reads[0 .. depth + 9]) |*read| rig.device.submit(read);
    try testing.expectEqual(0, rig.device.begun.count());
    rig.device.flush();
    try testing.expectEqual(depth, rig.device.begun.count());
    var ended: u32 = 0;
    var done: [4]*io.Read = undefined;
    while (rig.device.in_flight() > 0) {
        ended += @intCast(rig.device.poll(&done, .one));
        try testing.expectEqual(@min(depth, depth + 9 - ended), rig.device.begun.count());
    }
}

test "in order unless it was asked to reorder, late or not" {
    var rig = try Rig.init(testing.random_seed, Fault.late.mask());
    defer rig.deinit();
    try rig.read_all();
    try testing.expect(std.sort.isSorted(u32, &rig.order, {}, std.sort.asc(u32)));
}

test "EIO once: the same read again succeeds" {
    var rig = try Rig.init(testing.random_seed, Fault.eio_once.mask());
    defer rig.deinit();
    var failed_count: u32 = 0;
    var rounds: u32 = 0;
    while (failed_count == 0) : (rounds += 1) {
        try testing.expect(rounds < 20);
        try rig.read_all();
        for (&rig.reads, 0..) |*read, i| {
            if (read.status == .ok) {
                try testing.expect(rig.is_right(i));
                continue;
            }
            failed_count += 1;
            try testing.expectEqual(.io, read.status);
            try testing.expectEqual(@as(i32, @intFromEnum(std.os.linux.E.IO)), read.errno);
            rig.device.submit(read);
            var done: [1]*io.Read = undefined;
            try testing.expectEqual(1, rig.device.poll(&done, .one));
            try testing.expect(rig.is_right(i));
        }
    }
}

test "EIO forever and flipped bits sit in the same pages, for every device with the seed" {
    const seed = testing.random_seed;
    errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
    var bad: u32 = 0;
    for (0..8) |i| {
        const set = Fault.eio_forever.mask() | Fault.bit_flip.mask();
        var a = try Rig.init(seed +% i, set);
        defer a.deinit();
        var b = try Rig.init(seed +% i, set | Fault.reordered.mask());
        defer b.deinit();
        try a.read_all();
        try b.read_all();
        try b.read_all();
        for (&a.reads, &b.reads, 0..) |*read_a, *read_b, page| {
            try testing.expectEqual(read_a.status, read_b.status);
            if (read_a.status == .io) {
                bad += 1;
                continue;
            }
            try testing.expectEqualSlices(u8, read_a.data(), read_b.data());
            var bits: u32 = 0;
            for (read_a.data(), a.page_bytes(page)) |got, wanted| bits += @popCount(got ^ wanted);
            try testing.expect(bits <= 1);
            bad += bits;
        }
    }
    try testing.expect(bad > 0);
}

test "bytes of the wrong page are whole, and the same read again is right" {
    var struck: u32 = 0;
    for (0..8) |i| {
        var rig = try Rig.init(testing.random_seed +% i, Fault.wrong_page.mask());
        defer rig.deinit();
        try rig.read_all();
        for (&rig.reads, 0..) |*read, page| {
            try testing.expectEqual(.ok, read.status);
            if (rig.is_right(page)) continue;
            struck += 1;
            try testing.expectEqualSlices(u8, rig.page_bytes(if (page == 0) 1 else page - 1), read.data());
            rig.device.submit(read);
            var done: [1]*io.Read = undefined;
            try testing.expectEqual(1, rig.device.poll(&done, .one));
            try testing.expect(rig.is_right(page));
        }
    }
    try testing.expect(struck > 0);
}

test "the same seed repeats everything" {
    for (0..10) |i| {
        const seed = testing.random_seed +% i;
        errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
        var a = try Rig.init(seed, faults.all | faults.swarm);
        defer a.deinit();
        var b = try Rig.init(seed, faults.all | faults.swarm);
        defer b.deinit();
        try a.read_all();
        try b.read_all();
        try testing.expectEqualSlices(u32, &a.order, &b.order);
        try testing.expectEqualSlices(u64, &a.device.injected, &b.device.injected);
        try testing.expectEqual(a.device.clock_us, b.device.clock_us);
        try testing.expectEqualSlices(u8, a.buffers, b.buffers);
        for (&a.reads, &b.reads) |*read_a, *read_b| try testing.expectEqual(read_a.status, read_b.status);
    }
}

test "large reads with every passing fault, continued and repeated, from a file" {
    const seed = testing.random_seed;
    errdefer std.debug.print("simulated device: seed={d}\n", .{seed});
    const size = 64 * 1024;
    const content = try testing.allocator.alloc(u8, 4 * size);
    defer testing.allocator.free(content);
    var prng = base.Prng.init(seed);
    for (content) |*byte| byte.* = @truncate(prng.next());
    var folder = testing.tmpDir(.{});
    defer folder.cleanup();
    try folder.dir.writeFile(.{ .sub_path = "pages", .data = content });
    const file = try folder.dir.openFile("pages", .{});
    defer file.close();
    const buffer = try testing.allocator.alignedAlloc(u8, .fromByteUnits(page_size), size);
    defer testing.allocator.free(buffer);
    var device = try SimulatedDevice.init(testing.allocator, .{
        .file = file.handle,
        .queue_depth = 2,
        .simulated_seed = seed,
        .simulated_faults = Fault.short.mask() | Fault.again.mask() | Fault.late.mask(),
    });
    defer device.deinit();
    for (0..400) |i| {
        var read: io.Read = .{ .offset = i % 4 * size, .buffer = buffer.ptr, .length = size };
        device.submit(&read);
        var done: [1]*io.Read = undefined;
        try testing.expectEqual(1, device.poll(&done, .one));
        try testing.expectEqual(.ok, read.status);
        try testing.expectEqualSlices(u8, content[i % 4 * size ..][0..size], read.data());
    }
    try testing.expect(device.injected_count(.short) > 0);
    try testing.expect(device.injected_count(.again) > 0);
}
