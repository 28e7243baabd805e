//! A driver without a GPU, for tests: the functions of `driver.Api` over memory of the host. Never in the shipped library.
//!
//! Device memory comes poisoned and within a budget. Copies, launches and events of a stream happen when a caller waits for them,
//! so an early read sees old bytes. A kernel runs as its host version. The world below counts all of it, and lets
//! the n-th call fail.
const std = @import("std");
const driver = @import("driver.zig");
const Result = driver.Result;
const assert = std.debug.assert;

/// The host version of a kernel.
pub const Kernel = struct {
    name: []const u8,
    /// Of each argument.
    argument_bytes: []const usize,
    run: *const fn (arguments: []const []const u8, blocks: u32, threads: u32) void,
};

pub const Config = struct {
    devices: u32 = 2,
    version: u32 = 12_040,
    compute: u32 = 90,
    budget_bytes: u64 = 1 << 30,
    /// Of these the memory of other processes.
    others_bytes: u64 = 0,
    /// The call with this number fails once with `failure`, counted from 1; 0: none does.
    fail_call: u64 = 0,
    failure: Result = .unknown,
    /// From this call on the device is lost; 0: never.
    lost_from: u64 = 0,
    /// Calls of this function alone count for the two above; "": all do.
    function: []const u8 = "",
    kernels: []const Kernel = &.{},
};

pub const poison: u8 = 0xaa;
/// Of device memory.
const alignment: std.mem.Alignment = .fromByteUnits(256);
const arguments_max = 8;
const argument_bytes_max = 512;

const Op = union(enum) {
    up: struct { to: u64, from: [*]const u8, bytes: usize },
    down: struct { to: [*]u8, from: u64, bytes: usize },
    launch: Launch,
    event: *EventState,
};

const Launch = struct {
    kernel: *const Kernel,
    blocks: u32,
    threads: u32,
    arguments: [arguments_max][argument_bytes_max]u8,
};

const EventState = struct { stream: ?*StreamState = null, happened: bool = true, at_us: i64 = 0 };
const StreamState = struct { ops: std.ArrayList(Op) = .empty };

pub const World = struct {
    allocator: std.mem.Allocator,
    config: Config,
    mutex: std.Thread.Mutex = .{},
    blocks: std.AutoArrayHashMapUnmanaged(u64, u64) = .empty,
    /// Page-locked memory of the host.
    pinned: std.AutoArrayHashMapUnmanaged(u64, u64) = .empty,
    streams: u32 = 0,
    events: u32 = 0,
    modules: u32 = 0,
    contexts: u32 = 0,
    /// Threads' devices that were not given back.
    entered: u32 = 0,
    used_bytes: u64 = 0,
    calls: u64 = 0,
    counted: u64 = 0,
    lost: bool = false,
    launches: u64 = 0,
    bytes_up: u64 = 0,
    bytes_down: u64 = 0,
    null_stream: StreamState = .{},

    /// Nothing was left behind.
    pub fn is_empty(self: *const World) bool {
        return self.blocks.count() == 0 and self.pinned.count() == 0 and self.streams == 0 and self.events == 0 and self.modules == 0 and self.contexts == 0 and self.entered == 0;
    }

    fn enter(self: *World, comptime name: []const u8) Result {
        self.mutex.lock();
        self.calls += 1;
        const config = &self.config;
        if (config.function.len > 0 and !std.mem.eql(u8, config.function, name)) return if (self.lost) .launch_failed else .success;
        self.counted += 1;
        if (config.lost_from > 0 and self.counted >= config.lost_from) self.lost = true;
        if (self.lost) return .launch_failed;
        return if (config.fail_call == self.counted) config.failure else .success;
    }

    fn holds(self: *const World, address: u64, bytes: u64) bool {
        for (self.blocks.keys(), self.blocks.values()) |begin, size| {
            if (address >= begin and address + bytes <= begin + size) return true;
        }
        return false;
    }

    /// Runs the work of a stream up to and including an event.
    fn drain(self: *World, stream: *StreamState, until: ?*EventState) Result {
        while (stream.ops.items.len > 0) {
            const op = stream.ops.orderedRemove(0);
            switch (op) {
                .up => |copy| {
                    if (!self.holds(copy.to, copy.bytes)) return self.lose();
                    @memcpy(@as([*]u8, @ptrFromInt(copy.to))[0..copy.bytes], copy.from[0..copy.bytes]);
                    self.bytes_up += copy.bytes;
                },
                .down => |copy| {
                    if (!self.holds(copy.from, copy.bytes)) return self.lose();
                    @memcpy(copy.to[0..copy.bytes], @as([*]const u8, @ptrFromInt(copy.from))[0..copy.bytes]);
                    self.bytes_down += copy.bytes;
                },
                .launch => |*launch| {
                    var arguments: [arguments_max][]const u8 = undefined;
                    const sizes = launch.kernel.argument_bytes;
                    for (sizes, arguments[0..sizes.len], 0..) |size, *argument, i| argument.* = launch.arguments[i][0..size];
                    launch.kernel.run(arguments[0..sizes.len], launch.blocks, launch.threads);
                    self.launches += 1;
                },
                .event => |event| {
                    event.happened = true;
                    event.at_us = std.time.microTimestamp();
                    if (event == until) break;
                },
            }
        }
        return .success;
    }

    fn lose(self: *World) Result {
        self.lost = true;
        return .illegal_address;
    }

    fn stream_of(self: *World, stream: ?driver.Stream) *StreamState {
        return if (stream) |one| @ptrCast(@alignCast(one)) else &self.null_stream;
    }

    fn add(self: *World, stream: ?driver.Stream, op: Op) Result {
        self.stream_of(stream).ops.append(self.allocator, op) catch return .out_of_memory;
        return .success;
    }
};

/// The world that the functions act on; a driver knows one.
pub var world: ?*World = null;

/// Installs a world, in the place of one that is empty.
pub fn install(allocator: std.mem.Allocator, config: Config) error{OutOfMemory}!*World {
    assert(world == null);
    const made = try allocator.create(World);
    made.* = .{ .allocator = allocator, .config = config };
    world = made;
    return made;
}

/// Takes the world away with all that is left in it.
pub fn remove() void {
    const own = world orelse return;
    world = null;
    for (own.blocks.keys(), own.blocks.values()) |address, size| own.allocator.rawFree(@as([*]u8, @ptrFromInt(address))[0..size], alignment, 0);
    for (own.pinned.keys(), own.pinned.values()) |address, size| own.allocator.rawFree(@as([*]u8, @ptrFromInt(address))[0..size], alignment, 0);
    own.blocks.deinit(own.allocator);
    own.pinned.deinit(own.allocator);
    own.null_stream.ops.deinit(own.allocator);
    own.allocator.destroy(own);
}

pub const api: driver.Api = blk: {
    var made: driver.Api = undefined;
    for (std.meta.fieldNames(driver.Api)) |name| @field(made, name) = &@field(functions, name);
    break :blk made;
};

fn allocate(own: *World, table: *std.AutoArrayHashMapUnmanaged(u64, u64), bytes: usize) ?u64 {
    const memory = own.allocator.rawAlloc(bytes, alignment, 0) orelse return null;
    @memset(memory[0..bytes], poison);
    table.put(own.allocator, @intFromPtr(memory), bytes) catch {
        own.allocator.rawFree(memory[0..bytes], alignment, 0);
        return null;
    };
    return @intFromPtr(memory);
}

const functions = struct {
    fn cuInit(_: c_uint) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuInit");
        defer own.mutex.unlock();
        if (result == .success and own.config.devices == 0) return .no_device;
        return result;
    }

    fn cuDriverGetVersion(version: *c_int) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDriverGetVersion");
        defer own.mutex.unlock();
        version.* = @intCast(own.config.version);
        return result;
    }

    fn cuGetErrorName(result: Result, text: *?[*:0]const u8) callconv(.c) Result {
        text.* = switch (result) {
            .out_of_memory => "CUDA_ERROR_OUT_OF_MEMORY",
            .no_device => "CUDA_ERROR_NO_DEVICE",
            .launch_failed => "CUDA_ERROR_LAUNCH_FAILED",
            .illegal_address => "CUDA_ERROR_ILLEGAL_ADDRESS",
            .unknown => "CUDA_ERROR_UNKNOWN",
            .not_initialized => "CUDA_ERROR_NOT_INITIALIZED",
            .invalid_ptx => "CUDA_ERROR_INVALID_PTX",
            .unsupported_ptx_version => "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            else => return .invalid_value,
        };
        return .success;
    }

    fn cuGetErrorString(result: Result, text: *?[*:0]const u8) callconv(.c) Result {
        text.* = switch (result) {
            .out_of_memory => "out of memory",
            .no_device => "no CUDA-capable device is detected",
            .launch_failed => "unspecified launch failure",
            .illegal_address => "an illegal memory access was encountered",
            .unknown => "unknown error",
            else => return .invalid_value,
        };
        return .success;
    }

    fn cuDeviceGetCount(count: *c_int) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDeviceGetCount");
        defer own.mutex.unlock();
        count.* = @intCast(own.config.devices);
        return result;
    }

    fn cuDeviceGet(device: *driver.Device, ordinal: c_int) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDeviceGet");
        defer own.mutex.unlock();
        if (ordinal < 0 or ordinal >= own.config.devices) return .invalid_device;
        device.* = ordinal;
        return result;
    }

    fn cuDeviceGetName(name: [*]u8, size: c_int, device: driver.Device) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDeviceGetName");
        defer own.mutex.unlock();
        _ = std.fmt.bufPrintZ(name[0..@intCast(size)], "Simulated GPU {d}", .{device}) catch return .invalid_value;
        return result;
    }

    fn cuDeviceGetAttribute(value: *c_int, attribute: driver.Attribute, _: driver.Device) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDeviceGetAttribute");
        defer own.mutex.unlock();
        value.* = switch (attribute) {
            .compute_major => @intCast(own.config.compute / 10),
            .compute_minor => @intCast(own.config.compute % 10),
        };
        return result;
    }

    fn cuDeviceTotalMem(bytes: *usize, _: driver.Device) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDeviceTotalMem");
        defer own.mutex.unlock();
        bytes.* = own.config.budget_bytes;
        return result;
    }

    fn cuDevicePrimaryCtxRetain(context: *?driver.Context, _: driver.Device) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDevicePrimaryCtxRetain");
        defer own.mutex.unlock();
        if (result != .success) return result;
        own.contexts += 1;
        context.* = @ptrCast(own);
        return .success;
    }

    fn cuDevicePrimaryCtxRelease(_: driver.Device) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuDevicePrimaryCtxRelease");
        defer own.mutex.unlock();
        own.contexts -= 1;
        return result;
    }

    fn cuCtxPushCurrent(_: driver.Context) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuCtxPushCurrent");
        defer own.mutex.unlock();
        if (result == .success) own.entered += 1;
        return result;
    }

    fn cuCtxPopCurrent(context: *?driver.Context) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuCtxPopCurrent");
        defer own.mutex.unlock();
        own.entered -= 1;
        context.* = null;
        return result;
    }

    fn cuMemGetInfo(free: *usize, total: *usize) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuMemGetInfo");
        defer own.mutex.unlock();
        free.* = own.config.budget_bytes - own.config.others_bytes - own.used_bytes;
        total.* = own.config.budget_bytes;
        return result;
    }

    fn cuMemAlloc(address: *driver.Address, bytes: usize) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuMemAlloc");
        defer own.mutex.unlock();
        if (result != .success) return result;
        if (own.used_bytes + bytes > own.config.budget_bytes - own.config.others_bytes) return .out_of_memory;
        address.* = allocate(own, &own.blocks, bytes) orelse return .out_of_memory;
        own.used_bytes += bytes;
        return .success;
    }

    fn cuMemFree(address: driver.Address) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuMemFree");
        defer own.mutex.unlock();
        const block = own.blocks.fetchSwapRemove(address) orelse return .invalid_value;
        own.used_bytes -= block.value;
        own.allocator.rawFree(@as([*]u8, @ptrFromInt(address))[0..block.value], alignment, 0);
        return result;
    }

    fn cuMemHostAlloc(address: *?*anyopaque, bytes: usize, _: c_uint) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuMemHostAlloc");
        defer own.mutex.unlock();
        if (result != .success) return result;
        address.* = @ptrFromInt(allocate(own, &own.pinned, bytes) orelse return .out_of_memory);
        return .success;
    }

    fn cuMemFreeHost(address: ?*anyopaque) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuMemFreeHost");
        defer own.mutex.unlock();
        const block = own.pinned.fetchSwapRemove(@intFromPtr(address)) orelse return .invalid_value;
        own.allocator.rawFree(@as([*]u8, @ptrFromInt(block.key))[0..block.value], alignment, 0);
        return result;
    }

    fn cuMemcpyHtoDAsync(to: driver.Address, from: *const anyopaque, bytes: usize, stream: ?driver.Stream) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuMemcpyHtoDAsync");
        defer own.mutex.unlock();
        if (result != .success) return result;
        return own.add(stream, .{ .up = .{ .to = to, .from = @ptrCast(from), .bytes = bytes } });
    }

    fn cuMemcpyDtoHAsync(to: *anyopaque, from: driver.Address, bytes: usize, stream: ?driver.Stream) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuMemcpyDtoHAsync");
        defer own.mutex.unlock();
        if (result != .success) return result;
        return own.add(stream, .{ .down = .{ .to = @ptrCast(to), .from = from, .bytes = bytes } });
    }

    fn cuStreamCreate(stream: *?driver.Stream, _: c_uint) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuStreamCreate");
        defer own.mutex.unlock();
        if (result != .success) return result;
        const state = own.allocator.create(StreamState) catch return .out_of_memory;
        state.* = .{};
        own.streams += 1;
        stream.* = @ptrCast(state);
        return .success;
    }

    fn cuStreamDestroy(stream: driver.Stream) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuStreamDestroy");
        defer own.mutex.unlock();
        const state = own.stream_of(stream);
        state.ops.deinit(own.allocator);
        own.allocator.destroy(state);
        own.streams -= 1;
        return result;
    }

    fn cuStreamSynchronize(stream: ?driver.Stream) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuStreamSynchronize");
        defer own.mutex.unlock();
        if (result != .success) return result;
        return own.drain(own.stream_of(stream), null);
    }

    fn cuEventCreate(event: *?driver.Event, _: c_uint) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuEventCreate");
        defer own.mutex.unlock();
        if (result != .success) return result;
        const state = own.allocator.create(EventState) catch return .out_of_memory;
        state.* = .{};
        own.events += 1;
        event.* = @ptrCast(state);
        return .success;
    }

    fn cuEventDestroy(event: driver.Event) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuEventDestroy");
        defer own.mutex.unlock();
        own.allocator.destroy(@as(*EventState, @ptrCast(@alignCast(event))));
        own.events -= 1;
        return result;
    }

    fn cuEventRecord(event: driver.Event, stream: ?driver.Stream) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuEventRecord");
        defer own.mutex.unlock();
        if (result != .success) return result;
        const state: *EventState = @ptrCast(@alignCast(event));
        state.* = .{ .stream = own.stream_of(stream), .happened = false };
        return own.add(stream, .{ .event = state });
    }

    fn cuEventSynchronize(event: driver.Event) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuEventSynchronize");
        defer own.mutex.unlock();
        if (result != .success) return result;
        const state: *EventState = @ptrCast(@alignCast(event));
        return if (state.happened) .success else own.drain(state.stream.?, state);
    }

    fn cuEventElapsedTime(ms: *f32, from: driver.Event, to: driver.Event) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuEventElapsedTime");
        defer own.mutex.unlock();
        const first: *EventState = @ptrCast(@alignCast(from));
        const last: *EventState = @ptrCast(@alignCast(to));
        if (!first.happened or !last.happened) return .not_ready;
        ms.* = @as(f32, @floatFromInt(@max(0, last.at_us - first.at_us))) / 1000;
        return result;
    }

    fn cuModuleLoadDataEx(module: *?driver.Module, image: *const anyopaque, _: c_uint, _: ?[*]c_int, values: ?[*]?*anyopaque) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuModuleLoadDataEx");
        defer own.mutex.unlock();
        if (result != .success) {
            if (values) |given| @memcpy(@as([*]u8, @ptrCast(given[0].?)), "ptxas fatal : simulated\x00");
            return result;
        }
        if (@as([*]const u8, @ptrCast(image))[0] == 0) return .invalid_image;
        own.modules += 1;
        module.* = @ptrCast(own);
        return .success;
    }

    fn cuModuleUnload(_: driver.Module) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuModuleUnload");
        defer own.mutex.unlock();
        own.modules -= 1;
        return result;
    }

    fn cuModuleGetFunction(function: *?driver.Function, _: driver.Module, name: [*:0]const u8) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuModuleGetFunction");
        defer own.mutex.unlock();
        if (result != .success) return result;
        for (own.config.kernels) |*kernel| if (std.mem.eql(u8, kernel.name, std.mem.span(name))) {
            function.* = @ptrCast(@constCast(kernel));
            return .success;
        };
        return .not_found;
    }

    fn cuLaunchKernel(function: driver.Function, x: c_uint, _: c_uint, _: c_uint, threads: c_uint, _: c_uint, _: c_uint, _: c_uint, stream: ?driver.Stream, arguments: ?[*]?*anyopaque, _: ?[*]?*anyopaque) callconv(.c) Result {
        const own = world.?;
        const result = own.enter("cuLaunchKernel");
        defer own.mutex.unlock();
        if (result != .success) return result;
        const kernel: *const Kernel = @ptrCast(@alignCast(function));
        if (x == 0 or threads == 0) return .invalid_value;
        var launch: Launch = .{ .kernel = kernel, .blocks = x, .threads = threads, .arguments = undefined };
        for (kernel.argument_bytes, 0..) |size, i| {
            assert(size <= argument_bytes_max and i < arguments_max);
            @memcpy(launch.arguments[i][0..size], @as([*]const u8, @ptrCast(arguments.?[i].?)));
        }
        return own.add(stream, .{ .launch = launch });
    }
};

// ---- tests ----

const testing = std.testing;

fn double(arguments: []const []const u8, blocks: u32, threads: u32) void {
    const address = std.mem.bytesToValue(u64, arguments[0][0..8]);
    const values: [*]u32 = @ptrFromInt(address);
    for (values[0 .. blocks * threads]) |*value| value.* *= 2;
}

const kernels = [_]Kernel{.{ .name = "double", .argument_bytes = &.{8}, .run = double }};

/// Uploads, doubles and downloads four numbers.
fn exercise(diagnostic: *driver.Diagnostic) driver.Error!void {
    const own: driver.Driver = try .init(&api, diagnostic);
    var card = try driver.Card.open(own, 1, diagnostic);
    defer card.close();
    try card.enter(diagnostic);
    defer card.leave();
    const module = try card.load_module("ptx", diagnostic);
    defer card.unload_module(module);
    const kernel = try card.function(module, "double", diagnostic);
    const stream = try card.create_stream(diagnostic);
    defer card.destroy_stream(stream);
    const event = try card.create_event(diagnostic);
    defer card.destroy_event(event);
    var buffer = try card.alloc(16, diagnostic);
    defer card.free(&buffer);
    const host = try card.alloc_host(16, diagnostic);
    defer card.free_host(host);
    const values = std.mem.bytesAsSlice(u32, host);
    @memcpy(values, &[_]u32{ 1, 2, 3, 4 });
    try card.upload(buffer, 0, host, stream, diagnostic);
    var arguments = [_]?*anyopaque{&buffer.address};
    try card.launch(kernel, .{ .blocks = 2, .threads = 2 }, stream, &arguments, diagnostic);
    try card.download(host, buffer, stream, diagnostic);
    try card.record(event, stream, diagnostic);
    try testing_expect(values[0] == 1); // nothing has happened yet
    try card.wait(event, diagnostic);
    try testing_expect(std.mem.eql(u32, &.{ 2, 4, 6, 8 }, values));
}

fn testing_expect(holds: bool) driver.Error!void {
    if (!holds) return error.DriverFailed;
}

test "streams run in order, when they are waited for" {
    const own = try install(testing.allocator, .{ .kernels = &kernels });
    defer remove();
    var diagnostic: driver.Diagnostic = .{};
    try exercise(&diagnostic);
    try testing.expect(own.is_empty());
    try testing.expectEqual(1, own.launches);
    try testing.expectEqual(16, own.bytes_up);
    try testing.expectEqual(16, own.bytes_down);
}

test "whichever call fails, the error is typed and nothing is left behind" {
    var failed: u64 = 0;
    var call: u64 = 1;
    while (true) : (call += 1) {
        const own = try install(testing.allocator, .{ .kernels = &kernels, .fail_call = call });
        defer remove();
        var diagnostic: driver.Diagnostic = .{};
        if (exercise(&diagnostic)) |_| {
            // The calls that give something back may fail unseen.
            if (own.calls < call) break;
        } else |err| {
            try testing.expectEqual(error.DeviceLost, err);
            try testing.expect(std.mem.indexOf(u8, diagnostic.message(), "CUDA_ERROR_UNKNOWN") != null or std.mem.indexOf(u8, diagnostic.message(), "simulated") != null);
            failed += 1;
        }
        try testing.expect(own.is_empty());
    }
    try testing.expect(failed >= 20);
}

test "a device that is lost stays lost, and its memory is given back" {
    var call: u64 = 1;
    while (true) : (call += 1) {
        const own = try install(testing.allocator, .{ .kernels = &kernels, .lost_from = call });
        defer remove();
        var diagnostic: driver.Diagnostic = .{};
        exercise(&diagnostic) catch |err| {
            try testing.expectEqual(error.DeviceLost, err);
            try testing.expect(own.is_empty());
            continue;
        };
        break;
    }
    try testing.expect(call > 20);
}

test "an error for lack of memory names the needed and the free bytes" {
    _ = try install(testing.allocator, .{ .budget_bytes = 1500, .others_bytes = 500 });
    defer remove();
    var diagnostic: driver.Diagnostic = .{};
    var card = try driver.Card.open(try .init(&api, &diagnostic), 0, &diagnostic);
    defer card.close();
    var first = try card.alloc(600, &diagnostic);
    defer card.free(&first);
    try testing.expectError(error.DeviceMemory, card.alloc(500, &diagnostic));
    try testing.expectEqual(500, diagnostic.needed_bytes);
    try testing.expectEqual(400, diagnostic.free_bytes);
    try testing.expectEqualStrings("Simulated GPU 0 has 400 bytes free of 1500, and 500 are needed", diagnostic.message());
}

test "an old driver, an old device, no device and a wrong number have errors of their own" {
    var diagnostic: driver.Diagnostic = .{};
    {
        _ = try install(testing.allocator, .{ .version = 10_020 });
        defer remove();
        try testing.expectError(error.OldDriver, driver.Driver.init(&api, &diagnostic));
        try testing.expect(std.mem.indexOf(u8, diagnostic.message(), "CUDA 10.2; velo needs 11.0") != null);
    }
    {
        _ = try install(testing.allocator, .{ .devices = 0 });
        defer remove();
        try testing.expectError(error.NoDevice, driver.Driver.init(&api, &diagnostic));
        try testing.expect(std.mem.indexOf(u8, diagnostic.message(), "CUDA_VISIBLE_DEVICES") != null);
    }
    {
        _ = try install(testing.allocator, .{ .compute = 75 });
        defer remove();
        try testing.expectError(error.NoDevice, driver.Card.open(try .init(&api, &diagnostic), 0, &diagnostic));
        try testing.expectEqualStrings("Simulated GPU 0 has compute capability 7.5; velo needs 8.0 or later", diagnostic.message());
    }
    _ = try install(testing.allocator, .{});
    defer remove();
    try testing.expectError(error.NoDevice, driver.Card.open(try .init(&api, &diagnostic), 2, &diagnostic));
    try testing.expectEqualStrings("there is no GPU 2: the driver sees 2", diagnostic.message());
}
