"""Send an image file in a chat with the OpenAI SDK."""

import base64
import mimetypes
import os
import sys
from pathlib import Path

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://localhost:8080") + "/v1", api_key="none")
IMAGE = Path(__file__).resolve().parents[1] / "models/demo-vision/frozen/word-1.png"


def data_url(path: Path) -> str:
    """Return the file as a data URL."""
    kind = mimetypes.guess_type(path)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


image = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGE
question = sys.argv[2] if len(sys.argv) > 2 else "What does it say?"
reply = client.chat.completions.create(
    model="demo",
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": data_url(image)}},
                {"type": "text", "text": question},
            ],
        }
    ],
    temperature=0,
    max_tokens=40,
)
print(reply.choices[0].message.content)
print(f"-- {reply.usage.prompt_tokens if reply.usage else 0} prompt tokens, including those of the image")
